# cmake -DOUTPUT=page_files.cc "-DFILES=a.js;b.css" -P embed_files.cmake: a C++ source with the bytes of the files.
set(arrays "")
set(rows "")
set(index 0)
foreach(file IN LISTS FILES)
  file(READ ${file} bytes HEX)
  if(bytes STREQUAL "")
    message(FATAL_ERROR "${file}: is empty, expected something in it")
  endif()
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "(................................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {\n${bytes}};\n")
  string(APPEND rows
         "    {\"${name}\", {reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT}.new "// Made by cmake/embed_files.cmake.
#include \"server/page_files.h\"

namespace headwise {
namespace {

${arrays}
const PageFile kFiles[] = {
${rows}};

}  // namespace

std::span<const PageFile> PageFiles() {
  return kFiles;
}

}  // namespace headwise
")
file(RENAME ${OUTPUT}.new ${OUTPUT})
