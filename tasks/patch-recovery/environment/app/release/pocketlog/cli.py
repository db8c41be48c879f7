"""The command line."""

import argparse
from datetime import datetime

from .store import Store


def parser():
    top = argparse.ArgumentParser(prog="pocketlog")
    commands = top.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add")
    add.add_argument("text")
    commands.add_parser("list")
    return top


def main(argv=None):
    options = parser().parse_args(argv)
    store = Store()
    if options.command == "add":
        store.add(datetime.now().strftime("%Y-%m-%dT%H:%M"), options.text)
        return 0
    for time, text in store.entries():
        print(time, text)
    return 0
