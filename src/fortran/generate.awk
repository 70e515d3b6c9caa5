# SPDX-License-Identifier: BSD-3-Clause
#
# generate.awk - the public headers as Fortran: constants (part=constants), interfaces to C (part=interfaces), and a
# procedure for each function (part=procedures; generics joins those that take either kind of integer, public makes them
# so, names and unknown print the names of functions that are and are not understood). Lockstep's module includes the result, so that it cannot lag behind the headers. Usage: awk -v part=PART -f
# generate.awk HEADER...
#
# How C becomes Fortran
#   T *x                  type(T); where the header allows none, optional
#   int, int64_t, double  integer(c_int), integer of default kind or int64 (one kind a call), real(c_double)
#   int n, const int64_t *x   one array x(:); its length is n. Other const arrays are optional, NULL when absent (not the
#                         first of 64-bit integers)
#   int64_t *x            intent(inout), optional
#   T **x                 intent(inout); an array after a count
#   const char *x         character(*); const char ** and results: character(:), allocatable
#   char *x, int bytes    character(*), intent(out)
#   callbacks, void *     type(c_funptr), type(c_ptr)
#   an enumerator that differs from a function in case only has its enum's name put in: LKS_SUM is LKS_REDUCE_SUM

function trim(s) { gsub(/^[ \t\n]+|[ \t\n]+$/, "", s); return s }

{ text = text $0 "\n" }

END {
    read_headers()
    if (part == "constants") print_constants()
    for (f = 1; f <= functions; f++) {
        if (skip[fname[f]] || !understood[f]) continue
        if (part == "names") print fname[f]
        else if (part == "generics" && has_long[f]) print_generic(f)
        else if (part == "public") print_public(f)
        else if (part == "interfaces") print_interface(f)
        else if (part == "procedures") print_procedures(f)
    }
    if (part == "unknown")
        for (f = 1; f <= functions; f++) if (!understood[f] && !skip[fname[f]]) print fname[f]
}

# --- reading ---

function read_headers(   i, n, lines, s, body, statement, k)
{
    # written by hand in lockstep.F90
    split("lks_context_create lks_context_create_f lks_shape lks_stride lks_loader_input_shape lks_none", lines, " ")
    for (i in lines) skip[lines[i]] = 1
    split("config context tensor params module scaler optim dp loader output checkpoint custom graph", lines, " ")
    for (i in lines) handle["lks_" lines[i]] = 1
    split("bias gradient mask running_mean running_var staged_mean staged_var weight_tensor pos_weight s scaler config",
        lines, " ")
    for (i in lines) may_miss[lines[i]] = 1

    while ((i = index(text, "/*")) > 0) {
        k = index(substr(text, i), "*/")
        text = substr(text, 1, i - 1) " " substr(text, i + k + 1)
    }
    n = split(text, lines, "\n")
    body = ""
    for (i = 1; i <= n; i++) {
        s = lines[i]
        if (s ~ /^ *#/ || in_macro) {
            if (s ~ /^ *# *define +LKS_[A-Z_]+ +\(?-?[0-9]+\)? *$/) {
                split(trim(s), d, /[ \t]+/)
                gsub(/[()]/, "", d[3])
                constant(d[2], d[3], "")
            }
            if (s ~ /^ *# *define +LKS_STATUS_LIST/) list = "LKS_"
            if (s ~ /^ *# *define +LKS_DTYPE_LIST/) list = "dtype"
            if (in_macro && list != "") list_line(s)
            in_macro = s ~ /\\$/
            if (!in_macro) list = ""
            continue
        }
        body = body " " s
    }
    gsub(/extern "C" *\{/, " ", body)
    n = split(body, statements, ";")
    for (i = 1; i <= n; i++) {
        statement = trim(statements[i])
        if (statement ~ /^(typedef )?enum [a-z_]+ *\{/ || statement ~ /\} *enum [a-z_]+ *\{/) read_enum(statement)
        if (statement ~ /LKS_API /) {
            sub(/^.*LKS_API /, "", statement)
            if (statement ~ /\(/) read_function(statement)
        }
    }
    name_constants()
}

function list_line(s,   a)
{
    while (match(s, /X\([A-Z0-9_]+,[^)]*\)/)) {
        split(substr(s, RSTART + 2, RLENGTH - 3), a, ",")
        if (list == "dtype") constant("LKS_" a[1], dtypes++, "")
        else constant("LKS_" a[1], trim(a[2]), "")
        s = substr(s, RSTART + RLENGTH)
    }
}

function constant(name, value, enum)
{
    cname[++constants] = name
    cvalue[constants] = value
    cenum[constants] = enum
}

function read_enum(s,   name, items, n, i, value, pair)
{
    if (s ~ /X\(|LKS_STATUS_LIST|LKS_DTYPE_LIST/) {
        if (s ~ /LKS_DTYPE_NONE/) constant("LKS_DTYPE_NONE", -1, "")
        return
    }
    match(s, /enum [a-z_]+/)
    name = substr(s, RSTART + 5, RLENGTH - 5)
    sub(/^[^{]*\{/, "", s)
    sub(/\}.*$/, "", s)
    n = split(s, items, ",")
    value = 0
    for (i = 1; i <= n; i++) {
        items[i] = trim(items[i])
        if (items[i] == "") continue
        if (items[i] ~ /=/) {
            split(items[i], pair, "=")
            items[i] = trim(pair[1])
            value = trim(pair[2]) + 0
        }
        constant(items[i], value++, name)
    }
}

function name_constants(   i, lower)
{
    for (i = 1; i <= functions; i++) is_function[fname[i]] = 1
    for (i = 1; i <= constants; i++) if (is_function[tolower(cname[i])] && cenum[i] != "") clash[cenum[i]] = 1
    for (i = 1; i <= constants; i++)
        if (cenum[i] != "" && clash[cenum[i]])
            cname[i] = toupper(cenum[i]) "_" substr(cname[i], 5)
}

# Parameter p of function f: ptype base type, pconst, pstars, pname, pkind.
function read_function(s,   f, head, args, n, i, a, t)
{
    f = ++functions
    head = s
    sub(/\(.*$/, "", head)
    args = s
    sub(/^[^(]*\(/, "", args)
    sub(/\)[^)]*$/, "", args)
    head = trim(head)
    match(head, /[a-z_0-9]+$/)
    fname[f] = substr(head, RSTART)
    head = trim(substr(head, 1, RSTART - 1))
    understood[f] = 1
    result[f] = result_kind(f, head)
    args = trim(args)
    params[f] = 0
    if (args == "void" || args == "") return
    n = split(args, a, ",")
    for (i = 1; i <= n; i++) {
        t = trim(a[i])
        match(t, /[A-Za-z_0-9]+$/)
        pname[f, i] = substr(t, RSTART)
        t = substr(t, 1, RSTART - 1)
        pstars[f, i] = gsub(/\*/, " ", t)
        pconst[f, i] = gsub(/(^| )const( |$)/, " ", t) > 0
        ptype[f, i] = trim(t)
        params[f]++
    }
    for (i = 1; i <= n; i++) param_kind(f, i)
    # By the first of these the two kinds are told apart, so it cannot be absent.
    for (i = n; i >= 1; i--) if (pkind[f, i] == "long" || pkind[f, i] == "longs") first_long[f] = i
    has_long[f] = first_long[f] > 0
}

function result_kind(f, t,   stars)
{
    stars = gsub(/\*/, " ", t)
    gsub(/(^| )const( |$)/, " ", t)
    t = trim(t)
    if (t == "void") return stars ? "pointer" : "nothing"
    if (handle[t] && stars == 1) { rtype[f] = t; return "handle" }
    if (t == "char" && stars == 1) return "string"
    if (!stars && (t == "int" || t == "lks_status" || t == "lks_dtype")) return "int"
    if (!stars && t == "int64_t") return "long"
    if (!stars && t == "double") return "double"
    understood[f] = 0
    return "unknown"
}

function is_count(f, i)
{
    return i >= 1 && i <= params[f] && ptype[f, i] == "int" && !pstars[f, i] && pname[f, i] ~ /^(n|nin|nout|ndim|ndims|count|max)$/
}

function param_kind(f, i,   t, stars, k)
{
    t = ptype[f, i]; stars = pstars[f, i]; k = ""
    missing[f, i] = may_miss[pname[f, i]] ||
        (pname[f, i] == "weight" && fname[f] ~ /norm|loss|entropy/) || (t == "lks_tensor" && pname[f, i] == "loss")
    if (handle[t]) {
        if (stars == 1) k = "handle"
        else if (stars == 2 && pconst[f, i]) k = "handles"
        else if (stars == 2) k = is_count(f, i - 1) || pname[f, i] ~ /^(grads|scaled)$/ ? "out handles" : "out handle"
    } else if (t == "void" && stars == 1) k = "pointer"
    else if (t ~ /_fn$/ && !stars) k = "callback"
    else if (t == "char" && stars == 1 && pconst[f, i]) k = "string"
    else if (t == "char" && stars == 2 && fname[f] ~ /^lks_loader/) k = "strings"
    else if (t == "char" && stars == 2) k = "out string"
    else if (t == "char" && stars == 1 && pname[f, i + 1] == "bytes") k = "buffer"
    else if (t == "double" && !stars) k = "double"
    else if (t == "int64_t" && !stars) k = "long"
    else if ((t == "int" || t == "lks_status" || t == "lks_dtype") && !stars) k = "int"
    else if (stars == 1 && (t == "int64_t" || t == "int" || t == "double")) {
        k = t == "int64_t" ? "long" : t
        if (pconst[f, i]) k = k "s"
        else k = "out " k (is_count(f, i - 1) || is_count(f, i + 1) ? "s" : "")
    }
    if (k == "") { understood[f] = 0; k = "unknown" }
    pkind[f, i] = k
    # A count goes with the array beside it; a buffer's length is its own.
    if (k ~ /^(handles|out handles|strings|ints|longs|doubles)$/ && is_count(f, i - 1)) counted[f, i - 1] = i
    if (k ~ /^out (ints|longs|doubles)$/ && is_count(f, i + 1)) counted[f, i + 1] = i
    if (k ~ /^out (ints|longs|doubles)$/ && is_count(f, i - 1)) counted[f, i - 1] = i
    if (k == "buffer") counted[f, i + 1] = i
}

# --- writing ---

function print_constants(   i)
{
    for (i = 1; i <= constants; i++)
        printf "    integer(c_int), parameter, public :: %s = %s\n", cname[i], cvalue[i]
}

function print_generic(f)
{
    printf "    interface %s\n        module procedure %s_i8, %s_i4\n    end interface\n", fname[f], fname[f], fname[f]
}

function print_public(f) { printf "    public :: %s\n", fname[f] }

function raw_result(f)
{
    if (result[f] == "handle" || result[f] == "string" || result[f] == "pointer") return "type(c_ptr)"
    if (result[f] == "int") return "integer(c_int)"
    if (result[f] == "long") return "integer(c_int64_t)"
    return "real(c_double)"
}

function raw_param(k)
{
    if (k == "handle" || k == "pointer") return "type(c_ptr), value :: "
    if (k == "handles" || k == "strings") return "type(c_ptr), intent(in) :: "
    if (k == "out handle" || k == "out handles" || k == "out string") return "type(c_ptr), intent(inout) :: "
    if (k == "callback") return "type(c_funptr), value :: "
    if (k == "string") return "character(kind=c_char), intent(in) :: "
    if (k == "buffer") return "character(kind=c_char), intent(inout) :: "
    if (k == "int") return "integer(c_int), value :: "
    if (k == "long") return "integer(c_int64_t), value :: "
    if (k == "double") return "real(c_double), value :: "
    if (k == "ints") return "integer(c_int), intent(in), optional :: "
    if (k == "longs") return "integer(c_int64_t), intent(in), optional :: "
    if (k == "doubles") return "real(c_double), intent(in), optional :: "
    if (k ~ /^out int/) return "integer(c_int), intent(inout), optional :: "
    if (k ~ /^out long/) return "integer(c_int64_t), intent(inout), optional :: "
    return "real(c_double), intent(inout), optional :: "
}

function is_array(k) { return k ~ /s$/ || k == "string" || k == "buffer" }

function arguments(f, shown,   i, s)
{
    s = ""
    for (i = 1; i <= params[f]; i++) {
        if (shown && counted[f, i]) continue
        s = s (s == "" ? "" : ", &\n            ") dummy(f, i)
    }
    return s
}

# Dummy names must not hide what the procedures use.
function dummy(f, i,   n)
{
    n = pname[f, i]
    return n ~ /^(size|len|trim|merge|present)$/ ? n "_" : n
}

function print_interface(f,   i, k)
{
    printf "        %s c_%s(%s) bind(c, name=\"%s\")\n", result[f] == "nothing" ? "subroutine" : "function",
        substr(fname[f], 5), arguments(f, 0), fname[f]
    print "            import :: c_ptr, c_funptr, c_int, c_int64_t, c_double, c_char"
    for (i = 1; i <= params[f]; i++) {
        k = pkind[f, i]
        printf "            %s%s%s\n", raw_param(k), dummy(f, i), is_array(k) ? "(*)" : ""
    }
    if (result[f] != "nothing") printf "            %s :: c_%s\n", raw_result(f), substr(fname[f], 5)
    printf "        end %s\n", result[f] == "nothing" ? "subroutine" : "function"
}

function print_procedures(f)
{
    if (!has_long[f]) print_procedure(f, fname[f], "c_int64_t")
    else {
        print_procedure(f, fname[f] "_i8", "c_int64_t")
        print_procedure(f, fname[f] "_i4", "c_int")
    }
}

# Declaration of a dummy, and what is handed to C for it.
function print_procedure(f, name, kind,   i, k, n, call, before, after, decl, locals)
{
    printf "\n    %s %s(%s)%s\n", result[f] == "nothing" ? "subroutine" : "function", name, arguments(f, 1),
        result[f] == "nothing" ? "" : " result(r_)"
    call = before = after = locals = ""
    for (i = 1; i <= params[f]; i++) {
        k = pkind[f, i]
        n = dummy(f, i)
        decl = ""
        if (counted[f, i]) {
            k = pkind[f, counted[f, i]]
            n = dummy(f, counted[f, i])
            if (k == "buffer") give = "len(" n ", c_int) + 1"
            else if (k == "ints" || (k == "longs" && kind == "c_int")) give = "ints_in(" n ")"
            else if (k == "longs") give = "longs_in(" n ")"
            else if (k == "doubles") give = "doubles_in(" n ")"
            else give = "size(" n ", kind=c_int)"
        } else if (k == "handle") {
            decl = sprintf("type(%s), intent(in)%s :: %s", ptype[f, i], missing[f, i] ? ", optional" : "", n)
            give = n "%p"
            if (missing[f, i])
                give = (ptype[f, i] == "lks_tensor" ? "tensor_or_none(" : substr(ptype[f, i], 5) "_or_null(") n ")"
        } else if (k == "handles") {
            decl = sprintf("type(%s), intent(in) :: %s(:)", ptype[f, i], n)
            give = n "%p"
        } else if (k == "out handle") {
            decl = sprintf("type(%s), intent(inout) :: %s", ptype[f, i], n)
            give = n "%p"
        } else if (k == "out handles") {
            decl = sprintf("type(%s), intent(inout) :: %s(:)", ptype[f, i], n)
            locals = locals sprintf("        type(c_ptr) :: %s_p(size(%s))\n", n, n)
            before = before sprintf("        %s_p = %s%%p\n", n, n)
            after = after sprintf("        %s%%p = %s_p\n", n, n)
            give = n "_p"
        } else if (k == "pointer") {
            decl = "type(c_ptr), intent(in) :: " n
            give = n
        } else if (k == "callback") {
            decl = "type(c_funptr), intent(in) :: " n
            give = n
        } else if (k == "string") {
            decl = "character(len=*), intent(in) :: " n
            give = "c_string(" n ")"
        } else if (k == "strings") {
            decl = sprintf("character(len=*), intent(in) :: %s(:)", n)
            locals = locals sprintf("        character(len=len(%s)+1, kind=c_char), target :: %s_t(size(%s))\n", n, n, n) \
                sprintf("        type(c_ptr) :: %s_p(size(%s))\n        integer :: %s_i\n", n, n, n)
            before = before sprintf("        do %s_i = 1, size(%s)\n            %s_t(%s_i) = trim(%s(%s_i)) // c_null_char\n",
                n, n, n, n, n, n) sprintf("            %s_p(%s_i) = c_loc(%s_t(%s_i))\n        end do\n", n, n, n, n)
            give = n "_p"
        } else if (k == "out string") {
            decl = "character(len=:), allocatable, intent(out) :: " n
            locals = locals sprintf("        type(c_ptr) :: %s_p\n", n)
            before = before sprintf("        %s_p = c_null_ptr\n", n)
            after = after sprintf("        %s = f_string(%s_p)\n", n, n)
            give = n "_p"
        } else if (k == "buffer") {
            decl = "character(len=*), intent(out) :: " n
            locals = locals sprintf("        character(kind=c_char) :: %s_c(len(%s) + 1)\n", n, n)
            before = before sprintf("        %s_c = c_null_char\n", n)
            after = after sprintf("        call copy_string(%s_c, %s)\n", n, n)
            give = n "_c"
        } else if (k == "int") {
            decl = "integer(c_int), intent(in) :: " n
            give = n
        } else if (k == "long") {
            decl = sprintf("integer(%s), intent(in) :: %s", kind, n)
            give = kind == "c_int" ? "int(" n ", c_int64_t)" : n
        } else if (k == "double") {
            decl = "real(c_double), intent(in) :: " n
            give = n
        } else if (k == "ints") {
            decl = sprintf("integer(c_int), intent(in), optional :: %s(:)", n)
            give = n
        } else if (k == "doubles") {
            decl = sprintf("real(c_double), intent(in), optional :: %s(:)", n)
            give = n
        } else if (k == "longs") {
            decl = sprintf("integer(%s), intent(in)%s :: %s(:)", kind, i == first_long[f] ? "" : ", optional", n)
            give = n
            if (kind == "c_int") {
                locals = locals sprintf("        integer(c_int64_t), allocatable :: %s_l(:)\n", n)
                before = before sprintf("        %s%s_l = %s\n", i == first_long[f] ? "" : "if (present(" n ")) ", n, n)
                give = n "_l"
            }
        } else {
            decl = sprintf("%s, intent(inout), optional :: %s%s", k ~ /int/ ? "integer(c_int)" : k ~ /long/ ? \
                "integer(c_int64_t)" : "real(c_double)", n, is_array(k) ? "(:)" : "")
            give = n
        }
        if (decl != "") printf "        %s\n", decl
        call = call (call == "" ? "" : ", &\n            ") give
    }
    if (result[f] == "handle") printf "        type(%s) :: r_\n", rtype[f]
    else if (result[f] == "string") print "        character(len=:), allocatable :: r_"
    else if (result[f] != "nothing") printf "        %s :: r_\n", raw_result(f)
    printf "%s%s", locals, before
    call = "c_" substr(fname[f], 5) "(" call ")"
    if (result[f] == "nothing") printf "        call %s\n", call
    else if (result[f] == "handle") printf "        r_%%p = %s\n", call
    else if (result[f] == "string") printf "        r_ = f_string(%s)\n", call
    else printf "        r_ = %s\n", call
    printf "%s    end %s\n", after, result[f] == "nothing" ? "subroutine" : "function"
}
