// Runs a fuzzer's function over every file of a folder: what fuzzing once found stays found.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>

#include "base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    const auto content = headwise::ReadFile(entry.path());
    if (!content.ok()) {
      std::fprintf(stderr, "%s\n", content.status().message().c_str());
      return 1;
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content->data()), content->size());
    ++num_files;
  }
  std::printf("%d files\n", num_files);
  return num_files > 0 ? 0 : 1;
}
