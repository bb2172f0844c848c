// Attributes, items, iteration: what jinja2's sandbox makes of `object.name`, `object[key]` and `in`.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

// A position counted from either end, or nothing if it lies outside.
std::optional<size_t> PositionOf(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return static_cast<size_t>(index);
}

struct SliceRange {
  int64_t begin, end, step;
};

// Python's slice.indices.
SliceRange RangeOf(int64_t size, const Value& begin, const Value& end, int64_t step) {
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto clamp = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t at = value.integer();
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  return {clamp(begin, step > 0 ? low : high), clamp(end, step > 0 ? high : low), step};
}

std::vector<int64_t> PositionsOf(const SliceRange& range) {
  std::vector<int64_t> positions;
  for (int64_t at = range.begin; range.step > 0 ? at < range.end : at > range.end; at += range.step) {
    positions.push_back(at);
    // Further would be outside in any case, and might not be an integer any more.
    if (std::abs(range.end - at) <= std::abs(range.step)) break;
  }
  return positions;
}

bool IsDunder(std::string_view name) {
  return name.substr(0, 2) == "__";
}

Value StringLike(const Value& like, MarkedString text) {
  return like.is_markup() ? Value::Markup(std::move(text)) : Value::String(std::move(text));
}

}  // namespace

Result<Value> Interpreter::Missing(const Value& object, std::string_view name) const {
  // Names may be as long as a message.
  return Value::Undefined(fmt::format("'{} object' has no attribute '{}'", object.type_name(), name.substr(0, 100)));
}

Result<Value> Interpreter::LoopAttribute(const std::shared_ptr<Object>& object, std::string_view name) {
  auto& loop = static_cast<LoopObject&>(*object);
  const auto index = static_cast<int64_t>(loop.position);
  const auto number = [](int64_t value) { return Value::Int(value); };
  if (name == "index") return number(index + 1);
  if (name == "index0") return number(index);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "depth") return number(loop.depth0 + 1);
  if (name == "depth0") return number(loop.depth0);
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.position - 1] : Value::Undefined("there is no previous item");
  }
  if (name == "last" || name == "nextitem") {
    HW_ASSIGN_OR_RETURN(const bool has_next, LoopHas(loop, loop.position + 1));
    if (name == "last") return Value::Bool(!has_next);
    return has_next ? loop.items[loop.position + 1] : Value::Undefined("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    HW_RETURN_IF_ERROR(LoopHas(loop, loop.source.size()).status());
    const auto size = static_cast<int64_t>(loop.items.size());
    return number(name == "length" ? size : size - index - (name == "revindex0"));
  }
  return Missing(Value::Of(object), name);
}

Result<Value> Interpreter::Attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) {
    if (IsDunder(name)) return Missing(object, name);
    return Status::InvalidInput(object.UndefinedMessage());
  }
  if (const MethodFunction method = FindMethod(object.type(), name)) {
    HW_RETURN_IF_ERROR(Make(sizeof(FunctionObject)));
    return Value::Of(std::make_shared<FunctionObject>(std::string(name), object, method));
  }
  if (IsMutatingMethod(object.type(), name)) {
    return Value::Undefined(
        fmt::format("{}.{} changes what it belongs to, which templates may not", object.type_name(), name));
  }
  switch (object.type()) {
    case Type::kDict:
    case Type::kNamespace:
      if (const Value* found = object.dict().Find(name)) return *found;
      break;
    case Type::kLoop:
      return LoopAttribute(object.object(), name);
    case Type::kTuple:
      if (object.as<ListObject>().is_group && name == "grouper") return object.items()[0];
      if (object.as<ListObject>().is_group && name == "list") return object.items()[1];
      break;
    case Type::kRange: {
      const auto& range = object.as<RangeObject>();
      if (name == "start") return Value::Int(range.start);
      if (name == "stop") return Value::Int(range.stop);
      if (name == "step") return Value::Int(range.step);
      break;
    }
    case Type::kCycler: {
      const auto& cycler = object.as<CyclerObject>();
      if (name == "current") return cycler.items[cycler.position];
      break;
    }
    case Type::kMacro: {
      const MacroStmt& macro = object.as<MacroObject>().statement;
      if (name == "name") return Value::String(macro.name);
      if (name == "caller") return Value::Bool(macro.uses_caller);
      if (name == "catch_varargs") return Value::Bool(macro.uses_varargs);
      if (name == "catch_kwargs") return Value::Bool(macro.uses_kwargs);
      break;
    }
    default:
      break;
  }
  return Missing(object, name);
}

Result<Value> Interpreter::Item(const Value& object, const Value& key) {
  if (object.is_undefined()) return Status::InvalidInput(object.UndefinedMessage());
  std::optional<size_t> at;
  switch (object.type()) {
    case Type::kDict:
      if (CheckHashable(key).ok()) {
        HW_RETURN_IF_ERROR(SpendOn(key));
        if (const Value* found = object.dict().Find(key)) return *found;
      }
      break;
    case Type::kList:
    case Type::kTuple:
      if (key.is_integer() && (at = PositionOf(key.integer(), static_cast<int64_t>(object.items().size())))) {
        return object.items()[*at];
      }
      break;
    case Type::kRange:
      if (const auto& range = object.as<RangeObject>();
          key.is_integer() && (at = PositionOf(key.integer(), range.size()))) {
        return Value::Int(range.start + static_cast<int64_t>(*at) * range.step);
      }
      break;
    case Type::kString: {
      if (!key.is_integer()) break;
      HW_RETURN_IF_ERROR(SpendOnBytes(object.string().size()));
      const std::string_view text = object.view();
      if ((at = PositionOf(key.integer(), CountCharacters(text)))) {
        const size_t begin = ByteOfCharacter(text, static_cast<int64_t>(*at));
        return StringLike(object, object.string().Substr(begin, begin + ByteOfCharacter(text.substr(begin), 1)));
      }
      break;
    }
    default:
      break;
  }
  if (key.is_string()) {
    // Attributes, but keys of a dict have been looked for.
    return Attribute(object, key.view());
  }
  return Value::Undefined(fmt::format("'{} object' has no such item", object.type_name()));
}

Result<Value> Interpreter::Slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  if (object.is_undefined()) return Status::InvalidInput(object.UndefinedMessage());
  for (const Value* one : {&begin, &end, &step}) {
    if (!one->is_none() && !one->is_integer()) {
      return Status::InvalidInput(fmt::format("a slice by a {}, expected int", one->type_name()));
    }
  }
  const int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0 || by == INT64_MIN) return Status::InvalidInput(fmt::format("a slice of step {}", by));
  if (object.is_string()) {
    const MarkedString& text = object.string();
    HW_RETURN_IF_ERROR(SpendOnBytes(3 * text.size()));
    const SliceRange range = RangeOf(CountCharacters(text.view()), begin, end, by);
    if (by == 1) {
      if (range.begin >= range.end) return StringLike(object, MarkedString());
      const size_t first = ByteOfCharacter(text.view(), range.begin);
      const size_t size = ByteOfCharacter(text.view().substr(first), range.end - range.begin);
      return StringLike(object, text.Substr(first, first + size));
    }
    HW_RETURN_IF_ERROR(Make(text.size() * (sizeof(std::string_view) + sizeof(int64_t))));
    const auto characters = Characters(text.view());
    MarkedBuffer picked;
    for (const int64_t at : PositionsOf(range)) picked.Append(text.Part(characters[static_cast<size_t>(at)]));
    return NewString(std::move(picked), object.is_markup());
  }
  if (object.type() == Type::kRange) {
    const auto& all = object.as<RangeObject>();
    const SliceRange range = RangeOf(all.size(), begin, end, by);
    return Value::Of(std::make_shared<RangeObject>(all.start + range.begin * all.step, all.start + range.end * all.step,
                                                   all.step * by));
  }
  if (!object.is_list_or_tuple()) {
    return Status::InvalidInput(fmt::format("a slice of a {}, expected a list, a tuple or a str", object.type_name()));
  }
  const auto positions = PositionsOf(RangeOf(static_cast<int64_t>(object.items().size()), begin, end, by));
  std::vector<Value> items;
  items.reserve(positions.size());
  for (const int64_t at : positions) items.push_back(object.items()[static_cast<size_t>(at)]);
  return object.type() == Type::kList ? NewList(std::move(items)) : NewTuple(std::move(items));
}

Result<std::vector<Value>> Interpreter::Iterate(const Value& value) {
  const auto with_cost = [&](std::vector<Value> items) -> Result<std::vector<Value>> {
    HW_RETURN_IF_ERROR(Make(items.size() * sizeof(Value)));
    return items;
  };
  switch (value.type()) {
    case Type::kUndefined:
      return std::vector<Value>();
    case Type::kList:
    case Type::kTuple:
      return with_cost(value.items());
    case Type::kDict: {
      std::vector<Value> keys;
      keys.reserve(value.dict().entries.size());
      for (const auto& entry : value.dict().entries) keys.push_back(entry.first);
      return with_cost(std::move(keys));
    }
    case Type::kDictView: {
      HW_RETURN_IF_ERROR(Make(value.as<DictViewObject>().dict.dict().entries.size() * 4 * sizeof(Value)));
      return value.as<DictViewObject>().Items();
    }
    case Type::kString: {
      HW_RETURN_IF_ERROR(Make(static_cast<size_t>(CountCharacters(value.view())) * sizeof(Value)));
      std::vector<Value> characters;
      for (const std::string_view one : Characters(value.view())) {
        characters.push_back(Value::String(value.string().Part(one)));
      }
      return characters;
    }
    case Type::kRange: {
      const auto& range = value.as<RangeObject>();
      const int64_t size = range.size();
      HW_RETURN_IF_ERROR(Make(static_cast<size_t>(size) * sizeof(Value)));
      std::vector<Value> numbers;
      for (int64_t i = 0; i < size; ++i) numbers.push_back(Value::Int(range.start + i * range.step));
      return numbers;
    }
    case Type::kGenerator: {
      auto& generator = value.as<GeneratorObject>();
      std::vector<Value> rest(generator.items.begin() + static_cast<ptrdiff_t>(generator.next), generator.items.end());
      generator.next = generator.items.size();
      return with_cost(std::move(rest));
    }
    default:
      return Status::InvalidInput(fmt::format("a {} has no items to go through", value.type_name()));
  }
}

Result<int64_t> Interpreter::Length(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      HW_RETURN_IF_ERROR(SpendOnBytes(value.string().size()));
      return CountCharacters(value.view());
    case Type::kList:
    case Type::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Type::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Type::kDictView:
      return static_cast<int64_t>(value.as<DictViewObject>().dict.dict().entries.size());
    case Type::kRange:
      return value.as<RangeObject>().size();
    case Type::kLoop: {
      auto& loop = value.as<LoopObject>();
      HW_RETURN_IF_ERROR(LoopHas(loop, loop.source.size()).status());
      return static_cast<int64_t>(loop.items.size());
    }
    default:
      return Status::InvalidInput(fmt::format("a {} has no length", value.type_name()));
  }
}

Result<bool> Interpreter::AreEqual(const Value& a, const Value& b) {
  HW_RETURN_IF_ERROR(Spend(std::min(a.weight(), b.weight()) / 16));
  return Equals(a, b);
}

Result<bool> Interpreter::Contains(const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kString:
      if (!item.is_string()) {
        return Status::InvalidInput(fmt::format("a {} in a str, expected a str", item.type_name()));
      }
      HW_RETURN_IF_ERROR(SpendOnBytes(container.string().size(), item.string().size()));
      return container.view().find(item.view()) != std::string_view::npos;
    case Type::kDict:
      HW_RETURN_IF_ERROR(CheckHashable(item));
      HW_RETURN_IF_ERROR(SpendOn(item));
      return container.dict().Find(item) != nullptr;
    case Type::kDictView:
      if (const auto& view = container.as<DictViewObject>(); view.part == DictViewObject::Part::kKeys) {
        return Contains(view.dict, item);
      }
      break;
    case Type::kGenerator: {
      // What has been looked at is gone.
      auto& generator = container.as<GeneratorObject>();
      while (generator.next < generator.items.size()) {
        HW_ASSIGN_OR_RETURN(const bool is_equal, AreEqual(generator.items[generator.next++], item));
        if (is_equal) return true;
      }
      return false;
    }
    case Type::kUndefined:
    case Type::kList:
    case Type::kTuple:
    case Type::kRange:
      break;
    default:
      return Status::InvalidInput(fmt::format("'in' a {}, expected something with items", container.type_name()));
  }
  if (container.is_list_or_tuple()) {
    HW_RETURN_IF_ERROR(Spend(static_cast<int64_t>(container.items().size() / 8)));
    for (const Value& one : container.items()) {
      HW_ASSIGN_OR_RETURN(const bool is_equal, AreEqual(one, item));
      if (is_equal) return true;
    }
    return false;
  }
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(container));
  for (const Value& one : items) {
    HW_ASSIGN_OR_RETURN(const bool is_equal, AreEqual(one, item));
    if (is_equal) return true;
  }
  return false;
}

}  // namespace headwise::jinja
