# SPDX-License-Identifier: BSD-3-Clause
#
# doxygen.awk - Doxygen's input filter: the headers keep their plain comments, this makes Doxygen's of them, line for line.
#   - The head of a file describes the file.
#   - A comment before a declaration describes it and those that follow, up to the next blank line or comment.
#   - A comment behind a declaration or a member describes that.
#   - A comment followed by a blank line, and the text of a "--- heading", hold for all declarations up to the next such
#     comment: they are added to each description.
# The last line of lockstep.h gets the first page: the list of headers. Everything is plain text but for `names`, lists ("- " at the begin of a line), and empty lines between paragraphs.

function escaped(text)
{
    gsub(/[\\@&<>#%]/, "\\\\&", text)
    while (match(text, /`[^`]+`/))
        text = substr(text, 1, RSTART - 1) "<code>" substr(text, RSTART + 1, RLENGTH - 2) "</code>" \
            substr(text, RSTART + RLENGTH)
    return text
}

# A line of a comment without its frame.
function inner(line)
{
    sub(/^[ \t]*\/\*[ \t]?/, "", line)
    sub(/[ \t]*\*\/[ \t]*$/, "", line)
    sub(/^[ \t]*\*[ \t]?/, "", line)
    return line
}

function common_text() { return common == "" ? "" : "<p>" common }

# A line of code, with comments behind it that end there or go on.
function code(line,    at, text)
{
    if (line ~ /^(LKS_API|typedef|enum)/ && said != "" && !first) line = "/** " said common_text() " */ " line
    first = 0
    at = match(line, /[^ \t\/].*[^*]\/\*[^*]/) ? index(substr(line, 4), "/* ") : 0
    if (at && line !~ /^\/\*\* /) {
        at += 3
        text = substr(line, at)
        behind = text !~ /\*\//
        sub(/[ \t]*\*\/[ \t]*$/, "", text)
        line = substr(line, 1, at - 1) "/**< " escaped(substr(text, 4)) (behind ? "" : " */")
    }
    print line
}

# The comment in lines[1..n], now that it is known whether a declaration follows.
function comment(before_declaration,    i, text, start)
{
    said = ""
    start = 1
    if (!headed) {
        headed = 1
        print "/** \\file"
        for (i = 2; i < n; i++) {
            text = inner(lines[i])
            sub(/^lockstep[a-z\/]*\.h - /, "", text)
            print " * " escaped(text)
        }
        print " */"
        return
    }
    if (lines[1] ~ /^\/\* ---/) start = 2
    for (i = start; i <= n; i++) {
        text = escaped(inner(lines[i]))
        if (text ~ /[^ -]/) said = said (said == "" ? "" : " ") text
    }
    if (!before_declaration || start == 2) {
        common = said
        said = ""
        for (i = 1; i <= n; i++) print lines[i]
        return
    }
    for (i = 1; i <= n; i++)
        print (i == 1 ? "/** " : " * ") escaped(inner(lines[i])) (i == n ? common_text() " */" : "")
    first = 1
}

inside {
    lines[++n] = $0
    if (/\*\//) inside = 0
    next
}
behind {
    behind = !/\*\//
    text = inner($0)
    print " * " escaped(text) (behind ? "" : " */")
    next
}
{
    if (n) {
        comment($0 !~ /^[ \t]*$/)
        n = 0
    } else if (/^[ \t]*$/) {
        said = ""
    }
    if (/^\/\*/) {
        said = ""
        lines[n = 1] = $0
        inside = !/\*\//
        if (!inside && !/\*\/[ \t]*$/) { n = 0; code($0) }
        next
    }
    # Where nothing is said of a declaration itself, what holds for all is all.
    if (/^LKS_API/ && said == "" && !first && common != "") {
        first = 1
        $0 = "/** " common " */ " $0
    }
    code($0)
}
/^#include <lockstep\// {
    sub(/^.*</, "")
    sub(/>.*/, "")
    headers = headers "<li>" $0 "</li>"
}
END {
    if (n) comment(0)
    if (FILENAME ~ /lockstep\.h$/)
        print "/** \\mainpage API reference\nThe headers, to be read in this order:<ol>" headers "</ol> */"
}
