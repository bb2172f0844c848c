// Any bytes as a GGUF file: an error, or values that every getter takes or refuses, and tensors that lie inside the
// file, aligned and apart, of the sizes they claim.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "base/check.h"
#include "weights/gguf.h"

namespace {

using headwise::GgufMetadata;
using headwise::Status;

void CheckError(const Status& status) {
  HW_CHECK(status.ok() || status.message().starts_with("fuzz: "), "{}", status.message());
}

void CheckGetters(const GgufMetadata& metadata, const std::string& key) {
  CheckError(metadata.Int(key).status());
  CheckError(metadata.Double(key).status());
  CheckError(metadata.BoolOr(key, true).status());
  CheckError(metadata.String(key).status());
  CheckError(metadata.Ints(key).status());
  CheckError(metadata.Doubles(key).status());
  CheckError(metadata.Strings(key).status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto contents = headwise::ParseGguf(std::as_bytes(std::span(data, size)), "fuzz");
  CheckError(contents.status());
  if (!contents.ok()) return 0;
  for (const auto& [key, value] : contents->metadata.values()) CheckGetters(contents->metadata, key);
  std::set<std::pair<size_t, size_t>> ranges;
  for (const auto& [name, tensor] : contents->tensors) {
    HW_CHECK(tensor.begin < tensor.end && tensor.end <= size, "{}: {} to {} of {}", name, tensor.begin, tensor.end,
             size);
    HW_CHECK(tensor.begin % static_cast<size_t>(contents->alignment) == 0, "{}: {}", name, tensor.begin);
    const headwise::ConstTensorView view(data + tensor.begin, tensor.dtype, tensor.shape);
    HW_CHECK(static_cast<size_t>(view.size_bytes()) == tensor.end - tensor.begin, "{}: {}", name, view.size_bytes());
    ranges.emplace(tensor.begin, tensor.end);
  }
  size_t end = 0;
  for (const auto& range : ranges) {
    HW_CHECK(range.first >= end, "{} before {}", range.first, end);
    end = range.second;
  }
  HW_CHECK(ranges.size() == contents->tensors.size(), "{} of {}", ranges.size(), contents->tensors.size());
  return 0;
}
