"""Shell scripts that run in the helper pod, for busybox and coreutils.

Values are arguments of the script, never part of it. stdin has no EOF: the last argument is its number of
bytes, and it is read before anything can fail. Exit code 65: the input differs from what was sent.
"""

DAMAGED = 65
NO_FOLDER = 66
TOOLS = ("head", "sha256sum", "tar", "dd", "mv", "find", "stat", "df", "mkdir", "rm", "tr", "xargs", "cat")

# tools … -> those that are missing
PROBE = 'for tool in "$@"; do command -v "$tool" >/dev/null || echo "$tool"; done'

# folder -> KiB that are free, where the folder is or will be
SPACE = 'mkdir -p "$1" && df -Pk "$1" | { read -r _; read -r _ _ _ free _; echo "$free"; }'

# folder, N; stdin: a list of sums -> `path: OK` for each that is right
CHECK = """export LC_ALL=C
list=$(head -c "$2")
cd "$1" 2>/dev/null || exit 0
printf '%s\\n' "$list" | sha256sum -c 2>/dev/null || true"""

# folder, path, bytes of a part, how many parts -> size, and the sum of each part; nothing if it is not there
# or may not be read
PARTS = """cd "$1" 2>/dev/null && [ -f "./$2" ] && [ -r "./$2" ] || exit 0
stat -c %s "./$2"
i=0
while [ "$i" -lt "$4" ]; do
  dd if="./$2" bs="$3" skip="$i" count=1 2>/dev/null | sha256sum
  i=$((i + 1))
done"""

_RECEIVE = """set -e
mkdir -p "$1/tree"
part="$1/incoming-$$"
trap 'rm -f "$part"' EXIT
"""

# staging, sum, N; stdin: a tar
PUT_BUNDLE = (
    _RECEIVE
    + """head -c "$3" > "$part"
[ "$(sha256sum < "$part")" = "$2  -" ] || exit 65
tar -xof "$part" -C "$1/tree" """
)

# staging, sum, path, bytes of a part, index, notrunc or fsync (the last one cuts off what is too long), N
PUT_PART = (
    _RECEIVE
    + """head -c "$7" > "$part"
[ "$(sha256sum < "$part")" = "$2  -" ] || exit 65
case "$3" in */*) mkdir -p "$1/tree/${3%/*}" ;; esac
dd if="$part" of="$1/tree/$3" bs="$4" seek="$5" conv="$6" 2>/dev/null"""
)

# folder, staging, N; stdin: folders that hold files. Each file is renamed, so it is complete or absent.
PUBLISH = """set -e
list=$(head -c "$3")
printf '%s\\n' "$list" | while IFS= read -r dir; do
  mkdir -p "$1/$dir"
  [ -d "$2/tree/$dir" ] || continue
  find "$2/tree/$dir" -maxdepth 1 -type f -exec sh -c 'mv -f -- "$@" "$0/"' "$1/$dir" {} +
done"""

# folder, name, sum, N; stdin: a small file
PUT_FILE = """set -e
mkdir -p "$1"
part="$1/incoming-$$"
trap 'rm -f "$part"' EXIT
head -c "$4" > "$part"
[ "$(sha256sum < "$part")" = "$3  -" ] || exit 65
mv -f -- "$part" "$1/$2" """

# folder
REMOVE = 'rm -rf -- "$1"'

# folder -> `size seconds path` of each file; what a file system keeps for its own repairs is none
LIST = """cd "$1" 2>/dev/null || exit 66
find . -name .paceline -prune -o -path ./lost+found -prune -o -type f -exec stat -c '%s %Y %n' {} +"""

# folder, N; stdin: paths -> their sums
SUMS = """list=$(head -c "$2")
cd "$1" || exit 66
printf '%s\\n' "$list" | tr '\\n' '\\0' | xargs -0 sha256sum --"""

_GIVE = """set -e
part="$1/outgoing-$$"
trap 'rm -f "$part"' EXIT
"""

# scratch, folder, N; stdin: paths -> concatenated tars; their sum on stderr. A file that was removed or
# grows is no failure: each file has its own sum. Not every busybox has `tar -T`.
GET_BUNDLE = (
    _GIVE
    + """list=$(head -c "$3")
cd "$2"
printf '%s\\n' "$list" | tr '\\n' '\\0' | xargs -0 tar -cf - > "$part" 2>/dev/null || true
sha256sum < "$part" >&2
cat "$part" """
)

# scratch, folder, path, bytes of a part, index -> the part; its sum on stderr
GET_PART = (
    _GIVE
    + """cd "$2"
dd if="./$3" of="$part" bs="$4" skip="$5" count=1 2>/dev/null
sha256sum < "$part" >&2
cat "$part" """
)


def command(script: str, *argv: str) -> list[str]:
    """Command line of a script: `sh` is all that the image must provide."""
    return ["sh", "-c", script.strip(), "sh", *argv]
