// Filters that apply attributes, other filters or tests to every item; and all filters by name.
#include "text/jinja/filter_help.h"

namespace headwise::jinja {
namespace {

// The arguments behind the first `count`.
CallArgs Behind(const CallArgs& args, size_t count) {
  return {{args.values.begin() + static_cast<ptrdiff_t>(count), args.values.end()}, args.named};
}

Result<Value> MapAttribute(Interpreter& interpreter, const std::vector<Value>& items, const CallArgs& args) {
  const Value* path = nullptr;
  const Value* otherwise = nullptr;
  for (const auto& [name, value] : args.named) {
    if (name == "attribute") {
      path = &value;
    } else if (name == "default") {
      otherwise = &value;
    } else {
      return Status::InvalidInput(fmt::format("no parameter is called '{}'", name));
    }
  }
  if (!path) return Status::InvalidInput("expected the name of a filter, or 'attribute'");
  std::vector<Value> mapped;
  for (const Value& item : items) {
    HW_ASSIGN_OR_RETURN(Value value, AttributeByPath(interpreter, item, *path));
    mapped.push_back(value.is_undefined() && otherwise ? *otherwise : std::move(value));
  }
  return interpreter.NewGenerator(std::move(mapped));
}

Result<Value> Map(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  // So jinja2 has it, whatever the value is.
  if (!IsTrue(input)) return interpreter.NewGenerator({});
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  if (args.values.empty()) return MapAttribute(interpreter, items, args);
  if (!args.values[0].is_string()) return Status::InvalidInput("expected the name of a filter");
  const std::string_view name = args.values[0].view();
  const FilterFunction filter = FindFilter(name);
  const CallArgs rest = Behind(args, 1);
  std::vector<Value> mapped;
  if (!filter) return Status::InvalidInput(fmt::format("no filter is called '{}'", name.substr(0, 100)));
  for (const Value& item : items) {
    HW_ASSIGN_OR_RETURN(Value value, interpreter.ApplyFilter(filter, name, item, rest));
    mapped.push_back(std::move(value));
  }
  return interpreter.NewGenerator(std::move(mapped));
}

// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Result<Value> Select(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  if (!IsTrue(input)) return interpreter.NewGenerator({});
  constexpr size_t kNumPaths = by_attribute ? 1 : 0;
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(input));
  if (by_attribute && args.values.empty()) return Status::InvalidInput("parameter 'attribute' is missing");
  TestFunction test = nullptr;
  std::string_view name;
  CallArgs rest;
  if (args.values.size() > kNumPaths) {
    if (!args.values[kNumPaths].is_string()) return Status::InvalidInput("expected the name of a test");
    name = args.values[kNumPaths].view();
    test = FindTest(name);
    if (!test) return Status::InvalidInput(fmt::format("no test is called '{}'", name.substr(0, 100)));
    rest = Behind(args, kNumPaths + 1);
  } else if (!args.named.empty()) {
    return Status::InvalidInput("named arguments without a test");
  }
  std::vector<Value> kept;
  for (const Value& item : items) {
    HW_RETURN_IF_ERROR(interpreter.Spend(1));
    Value tested = item;
    if (by_attribute) {
      HW_ASSIGN_OR_RETURN(tested, AttributeByPath(interpreter, item, args.values[0]));
    }
    bool holds = IsTrue(tested);
    if (test) {
      HW_ASSIGN_OR_RETURN(holds, interpreter.ApplyTest(test, name, tested, rest));
    }
    if (holds == keeps) kept.push_back(item);
  }
  return interpreter.NewGenerator(std::move(kept));
}

Result<Value> AttrFilter(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"name"}, 1));
  HW_ASSIGN_OR_RETURN(const MarkedString name, StringArg(found[0], "name"));
  if (input.type() == Type::kDict && !FindMethod(Type::kDict, name.view())) {
    return Value::Undefined(fmt::format("'dict object' has no attribute '{}'", name.view().substr(0, 100)));
  }
  return interpreter.Attribute(input, name.view());
}

}  // namespace

const Filters& MappingFilters() {
  static const Filters kFilters = {
      {"map", Map},
      {"select", Select<false, true>},
      {"reject", Select<false, false>},
      {"selectattr", Select<true, true>},
      {"rejectattr", Select<true, false>},
      {"attr", AttrFilter},
  };
  return kFilters;
}

FilterFunction FindFilter(std::string_view name) {
  for (const Filters* filters : {&StringFilters(), &ListFilters(), &MappingFilters()}) {
    if (const auto at = filters->find(name); at != filters->end()) return at->second;
  }
  return nullptr;
}

}  // namespace headwise::jinja
