#!/bin/sh
set -eu
cat > /app/triage.sh <<'SH'
#!/bin/sh
# Summarise the ERROR records of rotated logs.
LC_ALL=C
export LC_ALL
dir=$1
stamp='^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\.[0-9][0-9][0-9]Z '

# One line a record: its first line, a tab, its cause (or nothing). Then copies are plain duplicates.
for file in "$dir"/app.log "$dir"/app.log.*; do
    [ -f "$file" ] || continue
    name=${file##*/}
    number=${name#app.log}
    number=${number#.}
    case $name in
        app.log) cat "$file"; continue ;;
        *.gz) number=${number%.gz} ;;
    esac
    case $number in
        '' | *[!0-9]*) continue ;;
    esac
    case $name in
        *.gz) gzip -dc "$file" ;;
        *) cat "$file" ;;
    esac
done | awk -v stamp="$stamp" '
    $0 ~ stamp { if (NR > 1) print head "\t" cause; head = $0; cause = ""; next }
    /^[ \t]*Caused by: / {
        cause = $0
        sub(/^[ \t]*Caused by: */, "", cause)
        sub(/[: \t].*$/, "", cause)
    }
    END { if (head != "") print head "\t" cause }
' | sort -u | awk -F '\t' '
    # Sorted by time: the first that is larger is the earliest.
    {
        split($1, field, " ")
        level = field[2]
        service = substr(field[3], 5)
        request = substr(field[4], 5)
        duration = substr(field[5], 5) + 0
        if (level != "DEBUG" && (slowest == "" || duration > longest)) {
            longest = duration
            slowest = request " " duration " " service
        }
        if (level != "ERROR") next
        if (errors++ == 0) first = request " " field[1]
        minute = substr(field[1], 1, 16)
        if (++minutes[minute] > most || (minutes[minute] == most && minute < peak)) {
            most = minutes[minute]
            peak = minute
        }
        services[service]++
        if ($NF != "" && NF > 1) causes[$NF]++
    }
    END {
        print 1, "errors", errors + 0
        if (errors) {
            print 2, "first", first
            print 3, "peak", peak, most
        }
        for (name in services) print 4, "service", name, services[name]
        if (slowest != "") print 5, "slowest", slowest
        for (name in causes) print 6, "cause", name, causes[name]
    }
' | sort -k1,1n -k4,4nr -k3,3 | cut -d ' ' -f 2-
SH
sh /app/triage.sh /app/logs > /app/triage.txt
