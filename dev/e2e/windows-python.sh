#!/usr/bin/env bash
# Makes .cache/images/windows/Python313, or Python312 for the argument 3.12: CPython for Windows as its installer lays it
# out, of the files on Maven Central (org.bytedeco:cpython). They lack venvlauncher.exe, for which
# dev/e2e/testdata/windows/venvlauncher stands.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=$PWD/.cache/images/windows
case ${1:-3.13} in
  3.12) name=Python312 spec=3.12.1-1.5.10 sum=e69bc4491c311e19ea7169bafc5efbbe03b980d69c6962b049daf1fcb4913391 ;;
  3.13) name=Python313 spec=3.13.5-1.5.12 sum=cfe5502ffa7ea369be707b6d88bf68344732a7800450665080fb4267c01bfeae ;;
  *) echo "windows-python: no Python $1 here: 3.12 or 3.13" >&2; exit 1 ;;
esac
jar=cpython-$spec-windows-x86_64.jar
url=https://repo1.maven.org/maven2/org/bytedeco/cpython/$spec/$jar

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[ ! -e "$cache/$name" ] || exit 0
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
curl --fail --silent --show-error --location -o "$work/$jar" "$url"
echo "$sum  $work/$jar" | sha256sum --check --quiet
python3 - "$work/$jar" "$work/$name" <<'UNPACK'
import os, sys, zipfile

jar, root = sys.argv[1:]
inside = "org/bytedeco/cpython/windows-x86_64/"
left_out = ("test/", "idlelib/", "turtledemo/", "tkinter/", "_test", "_ctypes_test", "_tkinter", "tcl86t", "tk86t", "pyshellext")
with zipfile.ZipFile(jar) as z:
    for name in z.namelist():
        top, _, rest = name[len(inside):].partition("/")
        if not name.startswith(inside) or name.endswith("/") or top in ("bin", "share", "jnipython.dll"):
            continue
        to = name[len(inside):]
        if top == "include":
            to = "Include/" + rest
        elif top == "lib":
            if rest.startswith(left_out):
                continue
            if "/" not in rest and rest.endswith((".pyd", ".dll")):
                to = rest if rest.startswith("vcruntime") else "DLLs/" + rest
            else:
                to = ("Lib/site-packages/" if rest.startswith("pip") else "Lib/") + rest
        path = os.path.join(root, to)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(z.read(name))
UNPACK
scripts=$work/$name/Lib/venv/scripts/nt
GOOS=windows GOARCH=amd64 CGO_ENABLED=0 go build -trimpath -o "$scripts/venvlauncher.exe" ./dev/e2e/testdata/windows/venvlauncher
cp "$scripts/venvlauncher.exe" "$scripts/venvwlauncher.exe"
mv "$work/$name" "$cache/"
