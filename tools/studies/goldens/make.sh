#!/bin/sh
# Makes tests/parity/golden/*.npz anew: tools/studies/goldens/make.sh DIR. An environment of its own (2 GB) and the
# published code that the definitions are checked against go to DIR. PYTHON: 3.11 or newer.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/originals"
work=$(cd "$1" && pwd)
bin=$work/venv/bin

[ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv "$work/venv"
"$bin/pip" install --quiet --requirement "$here/requirements.txt"

fetch() {  # repository, commit, path
    file=$work/originals/$(basename "$3")
    [ -f "$file" ] || curl -fsSL "https://raw.githubusercontent.com/$1/$2/$3" -o "$file"
}
fetch FasterDecoding/SnapKV e216ddc84c5bd210378cbdbbba12ba02102aa640 \
    snapkv/monkeypatch/snapkv_utils.py
fetch Zefan-Cai/KVCache-Factory c97f9d706d63d1b56e980f8b81b2a924c21162b3 \
    pyramidkv/pyramidkv_utils.py
fetch IsaacRe/vllm-kvcompress 5e2a639447aeda377ddfaefdb300fa011bf1cad3 \
    vllm/attention/backends/flash_attn.py
(cd "$work/originals" && sha256sum --check --quiet "$here/originals.sha256")

"$bin/python" "$here/make_goldens.py" --originals "$work/originals" --out "$here/../../../tests/parity/golden"
