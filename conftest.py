"""Almost empty: the plugin under test is the installed one."""

pytest_plugins = ["pytester"]
