#include "tensor/tensor.h"

#include <fmt/format.h>

namespace headwise {
namespace {

template <typename View>
View RowsOf(const View& view, int64_t begin, int64_t count) {
  HW_CHECK(view.shape.rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= view.shape[0], "rows {}+{} of {}",
           begin, count, view.shape.ToString());
  const int64_t row_bytes = view.shape[0] == 0 ? 0 : view.size_bytes() / view.shape[0];
  View rows = view;
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const std::byte, std::byte>;
  rows.data = static_cast<Byte*>(view.data) + begin * row_bytes;
  switch (view.shape.rank()) {
    case 1:
      rows.shape = {count};
      break;
    case 2:
      rows.shape = {count, view.shape[1]};
      break;
    case 3:
      rows.shape = {count, view.shape[1], view.shape[2]};
      break;
    default:
      rows.shape = {count, view.shape[1], view.shape[2], view.shape[3]};
  }
  return rows;
}

}  // namespace

std::string Shape::ToString() const {
  std::string text = "[";
  for (int dim = 0; dim < rank_; ++dim) text += fmt::format("{}{}", dim == 0 ? "" : ", ", (*this)[dim]);
  return text + "]";
}

TensorView TensorView::Rows(int64_t begin, int64_t count) const {
  return RowsOf(*this, begin, count);
}
ConstTensorView ConstTensorView::Rows(int64_t begin, int64_t count) const {
  return RowsOf(*this, begin, count);
}

}  // namespace headwise
