#!/usr/bin/env bash
# Creates .venv with everything that the project needs, or prints what is missing. Called by make.
#
# Uses the Python $PYTHON if it is set, otherwise the first of python3, python3.14 ... python3.10 on PATH that is 3.10
# or newer. Like Spark, uses the Java in JAVA_HOME if it is set, otherwise the one on PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=${PATH//"$PWD/.venv/bin:"/} # do not find the Python of an environment that may be replaced

venv=.venv
stamp=$venv/setup.stamp

missing=()

# Prints the version of the Python $1, or fails if it does not start.
python_version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null </dev/null
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null </dev/null
}

find_python() {
    local candidate version seen=() candidates=(python3 python3.14 python3.13 python3.12 python3.11 python3.10)
    if [[ -n ${PYTHON:-} ]]; then
        candidates=("$PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        version=$(python_version "$candidate") || continue
        if is_new_enough "$candidate"; then
            python=$candidate
            return
        fi
        seen+=("$candidate is $version")
    done
    if [[ -n ${PYTHON:-} ]]; then
        missing+=("Python 3.10 or newer is needed; ${seen[0]:-PYTHON=$PYTHON does not start}.")
    elif ((${#seen[@]})); then
        missing+=("Python 3.10 or newer is needed; found only: $(IFS=,; echo "${seen[*]}"). Set PYTHON to choose another.")
    else
        missing+=("Python 3.10 or newer is needed; no python3 on PATH. Set PYTHON to choose one.")
    fi
}

check_venv_module() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null </dev/null && return
    missing+=("Python's venv module with ensurepip is needed; $python has none (Debian, Ubuntu: install python3-venv).")
}

check_java() {
    local java=java where='java on PATH' output version major
    if [[ -n ${JAVA_HOME:-} ]]; then
        java=$JAVA_HOME/bin/java
        where="JAVA_HOME=$JAVA_HOME"
    fi
    if ! command -v "$java" >/dev/null; then
        if [[ -n ${JAVA_HOME:-} ]]; then
            missing+=("Java 17 to 21 is needed; $where has no bin/java.")
        else
            missing+=("Java 17 to 21 is needed; no java on PATH and JAVA_HOME is not set.")
        fi
        return
    fi
    output=$("$java" -version 2>&1 </dev/null) || output=
    # The line is, for example: openjdk version "17.0.15" 2025-04-15, or before Java 9: java version "1.8.0_392"
    version=$(sed -n 's/.* version "\([^"]*\)".*/\1/p' <<<"$output" | head -n 1)
    major=${version#1.}
    major=${major%%[!0-9]*}
    if [[ -z $major ]]; then
        missing+=("Java 17 to 21 is needed; $where does not start, or does not print a version.")
    elif ((major < 17 || major > 21)); then
        missing+=("Java 17 to 21 is needed; $where is version $version.")
    fi
}

stop_if_missing() {
    ((${#missing[@]})) || return 0
    printf 'setup: %s\n' "${missing[@]}" >&2
    exit 1
}

# Prints everything that the environment depends on, including the path of the checkout: a virtual environment
# cannot be moved.
inputs() {
    pwd
    cksum pyproject.toml constraints.txt scripts/setup.sh scripts/fetch_jars.py spark_ehbalance/spark_versions.py
}

# Whether the environment has the requested Python. Unless PYTHON is set, any version that works is right.
has_right_python() {
    local version
    version=$(python_version "$venv/bin/python") && is_new_enough "$venv/bin/python" || return 1
    [[ -z ${PYTHON:-} || $version == "$(python_version "$PYTHON")" ]]
}

is_up_to_date() {
    [[ -f $stamp && $(<"$stamp") == "$(inputs)" ]] && has_right_python
}

# Creates the environment, unless there is one that works, was not moved, and has the right Python.
make_venv() {
    if [[ -x $venv/bin/pip && $(head -n 3 "$venv/bin/pip") == *"$PWD/$venv/bin/python"* ]] && has_right_python; then
        return
    fi
    echo "setup: creating $venv with Python $(python_version "$python")"
    "$python" -m venv --clear "$venv"
}

check_java
if is_up_to_date; then
    stop_if_missing
    scripts/install_azurite.sh
    exit 0
fi
find_python
if [[ -n ${python:-} ]]; then
    check_venv_module
fi
stop_if_missing

rm -f "$stamp"
made_from=$(inputs) # computed before the work, so that a file edited meanwhile causes another set-up
make_venv
echo 'setup: installing packages'
"$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --use-pep517 \
    -c constraints.txt -e '.[dev,docs]' </dev/null
echo "setup: fetching Delta's jars"
"$venv/bin/python" scripts/fetch_jars.py </dev/null
scripts/install_azurite.sh
echo "$made_from" >"$stamp"
echo 'setup: done'
