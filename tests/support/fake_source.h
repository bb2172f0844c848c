// Weights in memory, each of which a test can remove or change.
#ifndef HEADWISE_TESTS_SUPPORT_FAKE_SOURCE_H_
#define HEADWISE_TESTS_SUPPORT_FAKE_SOURCE_H_

#include <fmt/format.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weights/weight_source.h"

namespace headwise {

class FakeSource final : public WeightSource {
 public:
  FakeSource() = default;
  explicit FakeSource(const WeightSource& from) {
    for (const std::string& name : from.Names()) tensors_[name] = from.Get(name).value();
  }

  const std::string& origin() const override { return origin_; }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, view] : tensors_) names.push_back(name);
    return names;
  }
  bool Has(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }
  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return Status::NotFound(fmt::format("fake: tensor \"{}\" is missing", name));
    return it->second;
  }

  ConstTensorView& operator[](const std::string& name) { return tensors_[name]; }
  void Erase(const std::string& name) { tensors_.erase(name); }
  // A tensor of f16 ones, or of `value(element)`.
  void Make(const std::string& name, const Shape& shape, const std::function<float(int64_t)>& value) {
    auto& data = owned_.emplace_back(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < data.size(); ++i) data[i] = F32ToF16(value(static_cast<int64_t>(i)));
    tensors_[name] = {data.data(), DType::kF16, shape};
  }

 private:
  std::string origin_ = "fake";
  std::map<std::string, ConstTensorView, std::less<>> tensors_;
  std::vector<std::vector<uint16_t>> owned_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_FAKE_SOURCE_H_
