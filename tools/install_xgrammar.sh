#!/usr/bin/env bash
# Puts the sources of xgrammar, which constrained decoding is built on, into a folder, from their archive on PyPI: 3 MB to
# fetch, no rights of root. CMake finds them there by itself (cmake/HeadwiseXgrammar.cmake) and builds them: half a minute
# on four cores.
# Usage: install_xgrammar.sh FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: install_xgrammar.sh FOLDER" >&2; exit 2; }
folder=$1
version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
# What is mended below is part of it.
stamp="$version $(sha256sum <"$0" | cut -c 1-16)"
[ "$(cat "$folder/VERSION" 2>/dev/null)" = "$stamp" ] && exit 0
python3 -m pip --version >/dev/null 2>&1 || {
  as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends python3-pip
}
echo "fetching: xgrammar $version"
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d -p "$(dirname "$folder")")  # whole, or not at all
trap 'rm -rf "$work"' EXIT
echo "xgrammar==$version --hash=sha256:$sha256" >"$work/requirements.txt"
# pip asks the archive's own build system for its metadata, which brings that one along; nothing of it is kept.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar --require-hashes \
  --dest "$work" --requirement "$work/requirements.txt"
archive=$work/xgrammar-$version.tar.gz
echo "$sha256  $archive" | sha256sum --check --quiet
tar -xzf "$archive" -C "$work"
sources=$work/xgrammar-$version
mkdir -p "$work/kept/3rdparty/dlpack"
mv "$sources"/{LICENSE,NOTICE,cpp,include} "$work/kept/"
mv "$sources/3rdparty/picojson" "$work/kept/3rdparty/"
mv "$sources/3rdparty/dlpack"/{LICENSE,include} "$work/kept/3rdparty/dlpack/"
rm -rf "$work/kept/cpp/tvm_ffi"  # its bindings for Python

# mend FILE TEXT OTHER: puts OTHER in the place of TEXT, which has to be there once.
mend() {
  python3 - "$work/kept/cpp/$1" "$2" "$3" <<'PYTHON'
import sys

path, text, other = sys.argv[1:]
source = open(path, encoding="utf-8").read()
if source.count(text) != 1:
    sys.exit(f"{path}: has {text!r} {source.count(text)} times, expected it once")
open(path, "w", encoding="utf-8").write(source.replace(text, other))
PYTHON
}
# Strings of bounded length let control characters through, which JSON does not, and halves of surrogate pairs, which are
# no characters.
mend json_schema_converter.cc "{'\\r', '\\r'}, {'\\n', '\\n'}}, true)" "{0, 0x1F}, {0xD800, 0xDFFF}}, true)"
# x? entered the end of x, and with it the loop that x may end with: (ab+)? matched "b".
mend fsm.cc "fsm.AddEpsilonEdge(start_, ends_.front());" \
  "const int start = fsm.AddState(); fsm.AddEpsilonEdge(start, start_);
    std::vector<int32_t> ends = ends_; ends.push_back(start);
    return FSMWithStartEnd(fsm, start, ends);"
# Nothing ends a grammar that takes too long, compiled or matched: who waits says so (grammar/xgrammar_hooks.h).
mend earley_parser.cc "bool EarleyParser::Advance(const uint8_t ch, bool debug_print) {" \
  "bool EarleyParser::Advance(const uint8_t ch, bool debug_print) {
  OnXgrammarWork();"
mend earley_parser.cc "void EarleyParser::AdvanceFsm(const ParserState& state, const uint8_t ch) {" \
  "void EarleyParser::AdvanceFsm(const ParserState& state, const uint8_t ch) {
  OnXgrammarWork();"
mend earley_parser.h "class EarleyParser {" "void OnXgrammarWork();
class EarleyParser {"
echo "$stamp" >"$work/kept/VERSION"
rm -rf "$folder"
mv "$work/kept" "$folder"
echo "$folder: xgrammar $version"
