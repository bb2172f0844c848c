// Reading the golden files: reference numbers of an outside implementation (tests/golden/README.md).
#ifndef HEADWISE_TESTS_SUPPORT_GOLDEN_H_
#define HEADWISE_TESTS_SUPPORT_GOLDEN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/tolerance.h"
#include "weights/weight_source.h"

namespace headwise {

// Of the tree that the tests were built in, or where HEADWISE_SOURCE in the environment says.
inline std::string SourcePath(const std::string& path) {
  const char* source = std::getenv("HEADWISE_SOURCE");
  return std::string(source != nullptr ? source : HEADWISE_SOURCE_DIR) + "/" + path;
}
inline std::string BundledModel() {
  return SourcePath("models/headwise-17m");
}

// The tensors of one golden file, as host vectors. A missing tensor fails the test and gives an empty vector.
class GoldenTensors {
 public:
  explicit GoldenTensors(const std::string& path) {
    auto source = OpenSafetensorsFile(path);
    EXPECT_TRUE(source.ok()) << source.status().message();
    if (source.ok()) source_ = *std::move(source);
  }

  bool Has(const std::string& name) const { return source_ != nullptr && source_->Has(name); }
  template <typename T>
  std::vector<T> Get(const std::string& name) const {
    if (source_ == nullptr) return {};
    const auto view = source_->Get(name);
    EXPECT_TRUE(view.ok()) << view.status().message();
    if (!view.ok()) return {};
    EXPECT_EQ(view->size_bytes(), view->shape.num_elements() * static_cast<int64_t>(sizeof(T)));
    const T* data = static_cast<const T*>(view->data);
    return std::vector<T>(data, data + view->shape.num_elements());
  }
  std::vector<float> F32(const std::string& name) const { return Get<float>(name); }
  std::vector<int32_t> Ids(const std::string& name) const { return Get<int32_t>(name); }

 private:
  std::unique_ptr<WeightSource> source_;
};

// Folders below `path`, sorted; at least one.
inline std::vector<std::string> GoldenFolders(const std::string& path) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_directory()) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  EXPECT_FALSE(folders.empty()) << path;
  return folders;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_GOLDEN_H_
