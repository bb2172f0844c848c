#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "text/utf8.h"

namespace headwise::jinja {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);
// Up to so many entries are compared one by one.
constexpr size_t kSmallDict = 8;

// An integer against a float, without rounding the integer.
int CompareIntFloat(int64_t a, double b) {
  if (std::isnan(b)) return 2;
  if (b >= 9223372036854775808.0) return -1;
  if (b < -9223372036854775808.0) return 1;
  const double floor = std::floor(b);
  const int64_t whole = static_cast<int64_t>(floor);
  if (a != whole) return a < whole ? -1 : 1;
  return floor < b ? -1 : 0;
}

int CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  if (a.is_integer()) return CompareIntFloat(a.integer(), b.number());
  if (b.is_integer()) {
    const int order = CompareIntFloat(b.integer(), a.number());
    return order == 2 ? 2 : -order;
  }
  const double x = a.number(), y = b.number();
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

bool EqualDicts(const DictObject& a, const DictObject& b, int depth) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.Find(key);
    if (!other || !Equals(value, *other, depth + 1)) return false;
  }
  return true;
}

}  // namespace

Value Value::List(std::vector<Value> items, Origin origin) {
  auto list = std::make_shared<ListObject>(Type::kList, std::move(items));
  list->origin = origin;
  return Of(std::move(list));
}

Value Value::Tuple(std::vector<Value> items) {
  return Of(std::make_shared<ListObject>(Type::kTuple, std::move(items)));
}

Value Value::Of(std::shared_ptr<Object> object) {
  const Type type = object->type;
  return {type, std::move(object), Origin::kTemplate};
}

Value Value::Undefined(std::string what) {
  return Of(std::make_shared<UndefinedObject>(std::move(what)));
}

bool Value::is_callable() const {
  switch (type_) {
    case Type::kLoop:
    case Type::kMacro:
    case Type::kFunction:
    case Type::kJoiner:
    case Type::kUndefined:
      return true;
    default:
      return false;
  }
}

const std::vector<Value>& Value::items() const {
  return as<ListObject>().items;
}

const DictObject& Value::dict() const {
  return as<DictObject>();
}

Origin Value::origin() const {
  if (is_string()) return string().AnyOrigin();
  if (std::holds_alternative<std::shared_ptr<Object>>(data_)) return object()->origin;
  return origin_;
}

int Value::depth() const {
  return std::holds_alternative<std::shared_ptr<Object>>(data_) ? object()->depth : 0;
}

int64_t Value::weight() const {
  if (is_string()) return 1 + static_cast<int64_t>(string().size() / 64);
  return std::holds_alternative<std::shared_ptr<Object>>(data_) ? object()->weight : 1;
}

const char* Value::type_name() const {
  switch (type_) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "None";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kDict:
      return "dict";
    case Type::kNamespace:
      return "namespace";
    case Type::kRange:
      return "range";
    case Type::kDictView:
      return "dict view";
    case Type::kGenerator:
      return "generator";
    case Type::kLoop:
      return "loop";
    case Type::kMacro:
      return "macro";
    case Type::kFunction:
      return "function";
    case Type::kCycler:
      return "cycler";
    case Type::kJoiner:
      return "joiner";
  }
  return "value";
}

std::string Value::UndefinedMessage() const {
  if (is_undefined() && std::holds_alternative<std::shared_ptr<Object>>(data_)) return as<UndefinedObject>().what;
  return "a value is undefined";
}

void Object::Hold(const Value& value) {
  depth = std::max(depth, value.depth() + 1);
  weight = std::min(weight + value.weight(), 2 * kMaxValueWeight);
}

void Object::Hold(const std::vector<Value>& values) {
  depth = 1;
  for (const Value& value : values) Hold(value);
}

ListObject::ListObject(Type list_or_tuple, std::vector<Value> values)
    : Object(list_or_tuple), items(std::move(values)) {
  Hold(items);
}

DictViewObject::DictViewObject(Value of, Part which) : Object(Type::kDictView), dict(std::move(of)), part(which) {
  origin = dict.origin();
  Hold(dict);
}

GeneratorObject::GeneratorObject(std::vector<Value> values) : Object(Type::kGenerator), items(std::move(values)) {
  Hold(items);
}

CyclerObject::CyclerObject(std::vector<Value> values) : Object(Type::kCycler), items(std::move(values)) {
  Hold(items);
}

size_t DictObject::Position(const Value& key) const {
  if (entries.size() <= kSmallDict) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (Equals(entries[i].first, key)) return i;
    }
    return kNone;
  }
  const auto [first, last] = index_.equal_range(Hash(key));
  for (auto at = first; at != last; ++at) {
    if (Equals(entries[at->second].first, key)) return at->second;
  }
  return kNone;
}

const Value* DictObject::Find(const Value& key) const {
  const size_t at = Position(key);
  return at == kNone ? nullptr : &entries[at].second;
}

const Value* DictObject::Find(std::string_view key) const {
  if (entries.size() > kSmallDict) {
    const auto [first, last] = index_.equal_range(std::hash<std::string_view>()(key));
    for (auto at = first; at != last; ++at) {
      const Value& known = entries[at->second].first;
      if (known.is_string() && known.view() == key) return &entries[at->second].second;
    }
    return nullptr;
  }
  for (const auto& [known, value] : entries) {
    if (known.is_string() && known.view() == key) return &value;
  }
  return nullptr;
}

void DictObject::Set(Value key, Value value) {
  // What a namespace holds may change under those who hold it, and may be the namespace itself.
  if (type == Type::kDict) {
    Hold(key);
    Hold(value);
  }
  const size_t at = Position(key);
  if (at != kNone) {
    entries[at].second = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() == kSmallDict + 1) {
    for (size_t i = 0; i < entries.size(); ++i) index_.emplace(Hash(entries[i].first), i);
  } else if (entries.size() > kSmallDict) {
    index_.emplace(Hash(entries.back().first), entries.size() - 1);
  }
}

void DictObject::Clear() {
  entries.clear();
  index_.clear();
}

int64_t RangeObject::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

std::vector<Value> DictViewObject::Items() const {
  std::vector<Value> items;
  items.reserve(dict.dict().entries.size());
  for (const auto& [key, value] : dict.dict().entries) {
    items.push_back(part == Part::kKeys ? key : part == Part::kValues ? value : Value::Tuple({key, value}));
  }
  return items;
}

bool IsTrue(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return value.boolean();
    case Type::kInt:
      return value.integer() != 0;
    case Type::kFloat:
      return value.number() != 0;
    case Type::kString:
      return !value.string().empty();
    case Type::kList:
    case Type::kTuple:
      return !value.items().empty();
    case Type::kDict:
      return !value.dict().entries.empty();
    case Type::kRange:
      return value.as<RangeObject>().size() > 0;
    case Type::kDictView:
      return !value.as<DictViewObject>().dict.dict().entries.empty();
    default:
      return true;
  }
}

bool Equals(const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth) return false;
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return a.view() == b.view();
    case Type::kList:
    case Type::kTuple:
      return a.object() == b.object() ||
             std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return Equals(x, y, depth + 1); });
    case Type::kDict:
      return a.object() == b.object() || EqualDicts(a.dict(), b.dict(), depth);
    case Type::kRange: {
      const auto &x = a.as<RangeObject>(), &y = b.as<RangeObject>();
      const int64_t size = x.size();
      return size == y.size() && (size == 0 || x.start == y.start) && (size <= 1 || x.step == y.step);
    }
    default:
      return a.object() == b.object();
  }
}

Result<int> Compare(const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth) return Status::InvalidInput("values nested too deeply to be compared");
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b);
  if (a.is_string() && b.is_string()) {
    // Bytes of UTF-8 are in the order of their characters.
    const int order = a.view().compare(b.view());
    return order < 0 ? -1 : order > 0;
  }
  if (a.is_undefined() || b.is_undefined()) {
    return Status::InvalidInput((a.is_undefined() ? a : b).UndefinedMessage());
  }
  if (a.is_list_or_tuple() && a.type() == b.type()) {
    const auto &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equals(x[i], y[i])) return Compare(x[i], y[i], depth + 1);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  return Status::InvalidInput(
      fmt::format("{} and {} have no order, expected two numbers or two strings", a.type_name(), b.type_name()));
}

Status CheckHashable(const Value& value) {
  switch (value.type()) {
    case Type::kList:
    case Type::kDict:
    case Type::kDictView:
      return Status::InvalidInput(fmt::format("a {} cannot be a key", value.type_name()));
    case Type::kTuple:
      for (const Value& item : value.items()) HW_RETURN_IF_ERROR(CheckHashable(item));
      return Status::Ok();
    default:
      return Status::Ok();
  }
}

size_t Hash(const Value& value) {
  switch (value.type()) {
    case Type::kBool:
    case Type::kInt:
      return std::hash<int64_t>()(value.integer());
    case Type::kFloat: {
      const double number = value.number();
      const bool is_whole = number == std::floor(number) && std::abs(number) < 9e18;
      return is_whole ? std::hash<int64_t>()(static_cast<int64_t>(number)) : std::hash<double>()(number);
    }
    case Type::kString:
      return std::hash<std::string_view>()(value.view());
    case Type::kTuple: {
      size_t hash = value.items().size();
      for (const Value& item : value.items()) hash = hash * 1000003 + Hash(item);
      return hash;
    }
    case Type::kUndefined:
    case Type::kNone:
    case Type::kRange:
      return static_cast<size_t>(value.type());
    default:
      return std::hash<const void*>()(value.object().get());
  }
}

namespace {

Result<Value> FromJson(const OrderedJson& json, Origin origin, int depth) {
  using Kind = OrderedJson::value_t;
  if (depth >= kMaxValueDepth) {
    return Status::InvalidInput(fmt::format("lists and objects more than {} deep", kMaxValueDepth));
  }
  const auto text_of = [&](const std::string& text) -> Result<Value> {
    if (const auto at = FindInvalidUtf8(text)) {
      return Status::InvalidInput(fmt::format("invalid UTF-8 at byte {} of a string", *at));
    }
    return Value::String(text, origin);
  };
  switch (json.type()) {
    case Kind::boolean:
      return Value::Bool(json.get<bool>(), origin);
    case Kind::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return Status::InvalidInput(fmt::format("{} needs more than 64 bits", json.get<uint64_t>()));
      }
      [[fallthrough]];
    case Kind::number_integer:
      return Value::Int(json.get<int64_t>(), origin);
    case Kind::number_float:
      return Value::Float(json.get<double>(), origin);
    case Kind::string:
      return text_of(json.get_ref<const std::string&>());
    case Kind::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) {
        HW_ASSIGN_OR_RETURN(Value value, FromJson(item, origin, depth + 1));
        items.push_back(std::move(value));
      }
      return Value::List(std::move(items), origin);
    }
    case Kind::object: {
      auto dict = std::make_shared<DictObject>();
      dict->origin = origin;
      for (const auto& [name, item] : json.items()) {
        HW_ASSIGN_OR_RETURN(Value key, text_of(name));
        HW_ASSIGN_OR_RETURN(Value value, FromJson(item, origin, depth + 1));
        dict->Set(std::move(key), std::move(value));
      }
      return Value::Of(std::move(dict));
    }
    default:
      return Value::None(origin);
  }
}

}  // namespace

Result<Value> ValueFromJson(const OrderedJson& json, Origin origin) {
  return FromJson(json, origin, 0);
}

}  // namespace headwise::jinja
