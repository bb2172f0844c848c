// Filters of lists and dicts.
#include <algorithm>

#include "text/jinja/filter_help.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

Result<Value> Length(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const int64_t length, interpreter.Length(input));
  return Value::Int(length);
}

Result<Value> First(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  if (input.is_list_or_tuple() && !input.items().empty()) return input.items()[0];
  if (input.type() == Type::kGenerator) {
    auto& generator = input.as<GeneratorObject>();
    if (generator.next < generator.items.size()) return generator.items[generator.next++];
    return Value::Undefined("No first item, sequence was empty.");
  }
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  return items.empty() ? Value::Undefined("No first item, sequence was empty.") : items.front();
}

Status ExpectReversible(const Value& input) {
  if (input.type() != Type::kGenerator && input.type() != Type::kLoop) return Status::Ok();
  return Status::InvalidInput(fmt::format("a {} has no end to begin from, expected a list", input.type_name()));
}

Result<Value> Last(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  if (input.is_list_or_tuple() && !input.items().empty()) return input.items().back();
  HW_RETURN_IF_ERROR(ExpectReversible(input));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  return items.empty() ? Value::Undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> ListFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.Iterate(input));
  return interpreter.NewList(std::move(items));
}

Result<Value> Reverse(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  if (input.is_string()) {
    return interpreter.Slice(input, Value::None(), Value::None(), Value::Int(-1));
  }
  HW_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.Iterate(input));
  std::reverse(items.begin(), items.end());
  // What can be read backwards at once is read as it goes.
  return input.type() == Type::kGenerator ? interpreter.NewList(std::move(items))
                                          : interpreter.NewGenerator(std::move(items));
}

Result<Value> Join(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"d", "attribute"}, 0));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  MarkedString between;
  if (found[0]) {
    HW_ASSIGN_OR_RETURN(between, interpreter.ToText(*found[0]));
  }
  MarkedBuffer joined;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (found[1] && !found[1]->is_none()) {
      HW_ASSIGN_OR_RETURN(item, AttributeByPath(interpreter, items[i], *found[1]));
    }
    const size_t before = joined.num_bytes();
    if (i > 0) joined.Append(between);
    HW_RETURN_IF_ERROR(interpreter.AppendText(item, joined));
    HW_RETURN_IF_ERROR(interpreter.Make(joined.num_bytes() - before));
  }
  return interpreter.NewString(std::move(joined));
}

Result<Value> Default(Interpreter&, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"default_value", "boolean"}, 0));
  HW_ASSIGN_OR_RETURN(const bool replaces_false, TruthArg(found[1], false));
  if (!input.is_undefined() && !(replaces_false && !IsTrue(input))) return input;
  return found[0] ? *found[0] : Value::String("");
}

Result<Value> Items(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  if (input.is_undefined()) return interpreter.NewGenerator({});
  if (input.type() != Type::kDict) {
    return Status::InvalidInput(fmt::format("a {}, expected dict", input.type_name()));
  }
  HW_RETURN_IF_ERROR(interpreter.Make(input.dict().entries.size() * 4 * sizeof(Value)));
  return interpreter.NewGenerator(DictViewObject(input, DictViewObject::Part::kItems).Items());
}

Result<Value> Sort(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"reverse", "case_sensitive", "attribute"}, 0));
  HW_ASSIGN_OR_RETURN(const bool descends, TruthArg(found[0], false));
  HW_ASSIGN_OR_RETURN(const bool case_sensitive, TruthArg(found[1], false));
  HW_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.Iterate(input));
  // `attribute` may name several, with commas between them: the first that differs decides.
  std::vector<Value> paths;
  if (found[2] && found[2]->is_string()) {
    for (const std::string_view one : Split(found[2]->view(), ",", -1)) paths.push_back(Value::String(one));
  } else {
    paths.push_back(found[2] ? *found[2] : Value::None());
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    // A list, even of one: equal values in it need no order, so that None and None may stand beside each other.
    std::vector<Value> parts;
    for (const Value& path : paths) {
      HW_ASSIGN_OR_RETURN(Value part, SortKey(interpreter, item, &path, case_sensitive));
      parts.push_back(std::move(part));
    }
    HW_ASSIGN_OR_RETURN(Value key, interpreter.NewList(std::move(parts)));
    keys.push_back(std::move(key));
  }
  HW_RETURN_IF_ERROR(SortByKeys(interpreter, descends, keys, items));
  return interpreter.NewList(std::move(items));
}

Result<Value> DictSort(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"case_sensitive", "by", "reverse"}, 0));
  HW_ASSIGN_OR_RETURN(const bool case_sensitive, TruthArg(found[0], false));
  HW_ASSIGN_OR_RETURN(const bool descends, TruthArg(found[2], false));
  const bool by_key = !found[1] || (found[1]->is_string() && found[1]->view() == "key");
  if (!by_key && !(found[1]->is_string() && found[1]->view() == "value")) {
    return Status::InvalidInput("parameter 'by': expected 'key' or 'value'");
  }
  if (input.is_undefined()) return Status::InvalidInput(input.UndefinedMessage());
  if (input.type() != Type::kDict) {
    return Status::InvalidInput(fmt::format("a {}, expected dict", input.type_name()));
  }
  std::vector<Value> keys, items;
  for (const auto& [key, value] : input.dict().entries) {
    HW_ASSIGN_OR_RETURN(Value pair, interpreter.NewTuple({key, value}));
    HW_ASSIGN_OR_RETURN(Value sort_key, SortKey(interpreter, by_key ? key : value, nullptr, case_sensitive));
    items.push_back(std::move(pair));
    keys.push_back(std::move(sort_key));
  }
  HW_RETURN_IF_ERROR(SortByKeys(interpreter, descends, keys, items));
  return interpreter.NewList(std::move(items));
}

Result<Value> Unique(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"case_sensitive", "attribute"}, 0));
  HW_ASSIGN_OR_RETURN(const bool case_sensitive, TruthArg(found[0], false));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  DictObject seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    HW_ASSIGN_OR_RETURN(Value key, SortKey(interpreter, item, found[1], case_sensitive));
    HW_RETURN_IF_ERROR(CheckHashable(key));
    HW_RETURN_IF_ERROR(interpreter.SpendOn(key));
    if (seen.Find(key)) continue;
    HW_RETURN_IF_ERROR(interpreter.Make(2 * sizeof(Value)));
    seen.Set(std::move(key), Value::None());
    kept.push_back(item);
  }
  return interpreter.NewGenerator(std::move(kept));
}

template <bool greatest>
Result<Value> Extreme(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"case_sensitive", "attribute"}, 0));
  HW_ASSIGN_OR_RETURN(const bool case_sensitive, TruthArg(found[0], false));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  if (items.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    HW_ASSIGN_OR_RETURN(Value key, SortKey(interpreter, items[i], found[1], case_sensitive));
    if (i > 0) {
      HW_RETURN_IF_ERROR(interpreter.SpendOn(key));
      HW_ASSIGN_OR_RETURN(const int order, Compare(key, best_key));
      if (order != (greatest ? 1 : -1)) continue;
    }
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Result<Value> Sum(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"attribute", "start"}, 0));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  Value sum = found[1] ? *found[1] : Value::Int(0);
  if (sum.is_string()) return Status::InvalidInput("a sum of str, expected numbers (use the filter 'join')");
  for (const Value& item : items) {
    Value part = item;
    if (found[0] && !found[0]->is_none()) {
      HW_ASSIGN_OR_RETURN(part, AttributeByPath(interpreter, item, *found[0]));
    }
    HW_ASSIGN_OR_RETURN(sum, interpreter.Binary(BinaryOp::kAdd, sum, part));
  }
  return sum;
}

Result<Value> Batch(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"linecount", "fill_with"}, 1));
  HW_ASSIGN_OR_RETURN(const int64_t size, IntArg(found[0], "linecount", 0));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  std::vector<Value> batches, batch;
  const auto end_batch = [&]() -> Status {
    HW_ASSIGN_OR_RETURN(Value list, interpreter.NewList(std::exchange(batch, {})));
    batches.push_back(std::move(list));
    return Status::Ok();
  };
  bool any = false;
  for (const Value& item : items) {
    if (static_cast<int64_t>(batch.size()) == size) HW_RETURN_IF_ERROR(end_batch());
    batch.push_back(item);
    any = true;
  }
  if (any && found[1] && !found[1]->is_none()) {
    const int64_t missing = size - static_cast<int64_t>(batch.size());
    HW_RETURN_IF_ERROR(
        interpreter.Make(static_cast<size_t>(std::clamp<int64_t>(missing, 0, int64_t{1} << 40)) * sizeof(Value)));
    for (int64_t i = 0; i < missing; ++i) batch.push_back(*found[1]);
  }
  if (any) HW_RETURN_IF_ERROR(end_batch());
  return interpreter.NewGenerator(std::move(batches));
}

Result<Value> SliceFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"slices", "fill_with"}, 1));
  HW_ASSIGN_OR_RETURN(const int64_t num_slices, IntArg(found[0], "slices", 1));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  if (num_slices == 0) return Status::InvalidInput("0 slices");
  const auto size = static_cast<int64_t>(items.size());
  HW_RETURN_IF_ERROR(
      interpreter.Make(static_cast<size_t>(std::clamp<int64_t>(num_slices, 0, int64_t{1} << 40)) * sizeof(Value)));
  std::vector<Value> slices;
  for (int64_t i = 0, begin = 0; i < num_slices; ++i) {
    const bool is_longer = i < size % num_slices;
    const int64_t end = begin + size / num_slices + is_longer;
    std::vector<Value> slice(items.begin() + begin, items.begin() + end);
    if (found[1] && !found[1]->is_none() && !is_longer) slice.push_back(*found[1]);
    HW_ASSIGN_OR_RETURN(Value list, interpreter.NewList(std::move(slice)));
    slices.push_back(std::move(list));
    begin = end;
  }
  return interpreter.NewGenerator(std::move(slices));
}

Result<Value> GroupBy(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"attribute", "default", "case_sensitive"}, 1));
  HW_ASSIGN_OR_RETURN(const bool case_sensitive, TruthArg(found[2], false));
  HW_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter.Iterate(input));
  const auto key_of = [&](const Value& item, bool with_case) -> Result<Value> {
    HW_ASSIGN_OR_RETURN(Value key, AttributeByPath(interpreter, item, *found[0]));
    if (key.is_undefined() && found[1]) key = *found[1];
    return SortKey(interpreter, key, nullptr, with_case);
  };
  std::vector<Value> keys;
  for (const Value& item : items) {
    HW_ASSIGN_OR_RETURN(Value key, key_of(item, case_sensitive));
    keys.push_back(std::move(key));
  }
  HW_RETURN_IF_ERROR(SortByKeys(interpreter, false, keys, items));
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    for (end = begin + 1; end < items.size(); ++end) {
      HW_ASSIGN_OR_RETURN(const bool is_equal, interpreter.AreEqual(keys[begin], keys[end]));
      if (!is_equal) break;
    }
    const auto first = items.begin() + static_cast<ptrdiff_t>(begin);
    HW_ASSIGN_OR_RETURN(Value list, interpreter.NewList({first, first + static_cast<ptrdiff_t>(end - begin)}));
    HW_ASSIGN_OR_RETURN(Value key, key_of(items[begin], true));
    HW_ASSIGN_OR_RETURN(Value group, interpreter.NewTuple({std::move(key), std::move(list)}));
    group.as<ListObject>().is_group = true;
    groups.push_back(std::move(group));
  }
  return interpreter.NewList(std::move(groups));
}

}  // namespace

Result<Value> AttributeByPath(Interpreter& interpreter, const Value& item, const Value& path) {
  if (!path.is_string()) return interpreter.Item(item, path);
  Value value = item;
  for (const std::string_view part : Split(path.view(), ".", -1)) {
    HW_RETURN_IF_ERROR(interpreter.Spend(1));
    const bool is_number =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
    int64_t number = 0;
    if (is_number) {
      for (const char digit : part) number = number * 10 + (digit - '0');
    }
    HW_ASSIGN_OR_RETURN(value, interpreter.Item(value, is_number ? Value::Int(number) : Value::String(part)));
  }
  return value;
}

Result<Value> SortKey(Interpreter& interpreter, const Value& item, const Value* path, bool case_sensitive) {
  Value key = item;
  if (path && !path->is_none()) {
    HW_ASSIGN_OR_RETURN(key, AttributeByPath(interpreter, item, *path));
  }
  if (case_sensitive || !key.is_string()) return key;
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(key.string().size(), 32));
  return interpreter.NewString(MapCase(key.string(), Case::kLower));
}

Status SortByKeys(Interpreter& interpreter, bool descends, std::vector<Value>& keys, std::vector<Value>& items) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Merged from the bottom up: nothing may be assumed of an order that fails halfway.
  std::vector<size_t> merged(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size()), end = std::min(begin + 2 * width, order.size());
      for (size_t left = begin, right = middle, to = begin; to < end; ++to) {
        bool takes_right = left == middle;
        if (!takes_right && right < end) {
          const Value &a = keys[order[left]], &b = keys[order[right]];
          HW_RETURN_IF_ERROR(interpreter.Spend(1 + std::min(a.weight(), b.weight()) / 16));
          HW_ASSIGN_OR_RETURN(const int compared, Compare(b, a));
          takes_right = compared == (descends ? 1 : -1);
        }
        merged[to] = takes_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  const auto arrange = [&](std::vector<Value>& values) {
    std::vector<Value> arranged;
    arranged.reserve(values.size());
    for (const size_t i : order) arranged.push_back(std::move(values[i]));
    values = std::move(arranged);
  };
  arrange(keys);
  arrange(items);
  return Status::Ok();
}

const Filters& ListFilters() {
  static const Filters kFilters = {
      {"length", Length},   {"count", Length},       {"first", First},       {"last", Last},
      {"list", ListFilter}, {"reverse", Reverse},    {"join", Join},         {"default", Default},
      {"d", Default},       {"items", Items},        {"sort", Sort},         {"dictsort", DictSort},
      {"unique", Unique},   {"min", Extreme<false>}, {"max", Extreme<true>}, {"sum", Sum},
      {"batch", Batch},     {"slice", SliceFilter},  {"groupby", GroupBy},
  };
  return kFilters;
}

}  // namespace headwise::jinja
