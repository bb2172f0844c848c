// A copy of a golden model with something wrong in it.
#ifndef HEADWISE_TESTS_SUPPORT_CHANGED_MODEL_H_
#define HEADWISE_TESTS_SUPPORT_CHANGED_MODEL_H_

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/golden.h"
#include "weights/safetensors.h"

namespace headwise {

// A folder of its own, gone with the object.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& golden) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              fmt::format("headwise_{}_{}_{}", test->test_suite_name(), test->name(), ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    golden_ = SourcePath("tests/golden/tiny/" + golden);
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(golden_ + "/" + file, folder_ / file);
    }
  }
  ChangedModel(const ChangedModel&) = delete;
  ~ChangedModel() { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_.string(); }
  std::string Path(const std::string& file) const { return (folder_ / file).string(); }
  void Write(const std::string& file, std::string_view content) const {
    std::ofstream(folder_ / file, std::ios::binary | std::ios::trunc) << content;
  }
  // The checkpoint with one number of one tensor changed.
  void SetNumber(const std::string& name, int64_t idx, float value) const {
    const auto source = OpenSafetensorsFolder(golden_);
    ASSERT_TRUE(source.ok()) << source.status().message();
    const ConstTensorView before = (*source)->Get(name).value();
    std::vector<std::byte> data(static_cast<size_t>(before.size_bytes()));
    std::copy_n(static_cast<const std::byte*>(before.data), data.size(), data.begin());
    StoreF32As(before.dtype, data.data(), idx, value);
    std::vector<NamedTensor> tensors;
    for (const std::string& each : (*source)->Names()) tensors.push_back({each, (*source)->Get(each).value()});
    for (NamedTensor& tensor : tensors) {
      if (tensor.name == name) tensor.view.data = data.data();
    }
    const Status written = WriteSafetensors(Path("model.safetensors"), tensors);
    ASSERT_TRUE(written.ok()) << written.message();
  }

 private:
  std::filesystem::path folder_;
  std::string golden_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_CHANGED_MODEL_H_
