// The files of the page, src/server/page, as they were when this was built.
#ifndef HEADWISE_SERVER_PAGE_FILES_H_
#define HEADWISE_SERVER_PAGE_FILES_H_

#include <span>
#include <string_view>

namespace headwise {

struct PageFile {
  std::string_view name;  // "main.js"
  std::string_view bytes;
};

// The source of this is made by cmake/embed_files.cmake.
std::span<const PageFile> PageFiles();

}  // namespace headwise

#endif  // HEADWISE_SERVER_PAGE_FILES_H_
