# SPDX-License-Identifier: BSD-3-Clause
#
# completion.bash - bash completion of the lockstep command. Options and their choices are read from its own --help.
_lockstep()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]} words= line
    local -a call=("${COMP_WORDS[1]}")
    COMPREPLY=()
    case $COMP_CWORD:${COMP_WORDS[1]} in
    1:*) words=$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p') ;;
    2:train) words="lm classify regress" ;;
    2:checkpoint) words="list verify diff" ;;
    *)
        case ${COMP_WORDS[1]} in train | checkpoint) call+=("${COMP_WORDS[2]}") ;; esac
        line=$("$program" "${call[@]}" --help 2>/dev/null)
        if [[ $cur == -* ]]; then
            words=$(sed -n 's/^  \(--[a-z-]*\).*/\1/p' <<<"$line")
        elif [[ $prev == --* ]]; then # a choice is printed as one|two|three
            words=$(sed -n "s/^  $prev \([a-zA-Z0-9|]*|[a-zA-Z0-9|]*\) .*/\1/p" <<<"$line" | tr '|' ' ')
        fi
        ;;
    esac
    [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$cur"))
    [[ ${#COMPREPLY[@]} -gt 0 ]] || compopt -o default 2>/dev/null
}
complete -F _lockstep lockstep
