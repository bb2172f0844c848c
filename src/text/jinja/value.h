// Values of the template language: what Python's are in jinja2, as far as chat templates can tell. Strings carry their
// origins (marked_string.h); numbers, booleans and None, and the brackets of lists and dicts, are wholly the template's
// or the context's. Integers have 64 bits: Python's greater ones are an error.
#ifndef HEADWISE_TEXT_JINJA_VALUE_H_
#define HEADWISE_TEXT_JINJA_VALUE_H_

#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/marked_string.h"

namespace headwise::jinja {

using OrderedJson = nlohmann::ordered_json;

enum class Type : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kRange,
  kDictView,   // what items(), keys() and values() of a dict give
  kGenerator,  // what filters give that jinja2 computes as it goes: read once, without a length
  kLoop,
  kMacro,
  kFunction,  // globals and methods
  kCycler,
  kJoiner,
};

struct Object;
struct ListObject;
struct DictObject;

class Value {
 public:
  Value() = default;  // Undefined, of no name
  static Value None(Origin origin = Origin::kTemplate) { return {Type::kNone, std::monostate(), origin}; }
  static Value Bool(bool value, Origin origin = Origin::kTemplate) { return {Type::kBool, value, origin}; }
  static Value Int(int64_t value, Origin origin = Origin::kTemplate) { return {Type::kInt, value, origin}; }
  static Value Float(double value, Origin origin = Origin::kTemplate) { return {Type::kFloat, value, origin}; }
  static Value String(MarkedString text) { return {Type::kString, std::move(text), Origin::kTemplate}; }
  static Value String(std::string_view text, Origin origin = Origin::kTemplate) {
    return String(MarkedString(text, origin));
  }
  // A string that HTML is not escaped in again: what the filters `safe` and `escape` give.
  static Value Markup(MarkedString text) {
    Value value = String(std::move(text));
    value.is_markup_ = true;
    return value;
  }
  static Value List(std::vector<Value> items, Origin origin = Origin::kTemplate);
  static Value Tuple(std::vector<Value> items);
  // The object's own type.
  static Value Of(std::shared_ptr<Object> object);
  // `what` is what using it would say: "'x' is undefined".
  static Value Undefined(std::string what);

  Type type() const { return type_; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  // What Value() gives.
  bool is_unset() const { return std::holds_alternative<std::monostate>(data_) && is_undefined(); }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_markup() const { return is_markup_; }
  // Booleans are integers, as in Python.
  bool is_integer() const { return type_ == Type::kInt || type_ == Type::kBool; }
  bool is_number() const { return is_integer() || type_ == Type::kFloat; }
  bool is_list_or_tuple() const { return type_ == Type::kList || type_ == Type::kTuple; }
  bool is_callable() const;

  // Each requires the type it names.
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return type_ == Type::kBool ? boolean() : std::get<int64_t>(data_); }
  double number() const { return type_ == Type::kFloat ? std::get<double>(data_) : static_cast<double>(integer()); }
  const MarkedString& string() const { return std::get<MarkedString>(data_); }
  std::string_view view() const { return string().view(); }
  const std::vector<Value>& items() const;  // of a list or tuple
  const DictObject& dict() const;           // of a dict or a namespace
  template <typename T>
  T& as() const {
    return static_cast<T&>(*std::get<std::shared_ptr<Object>>(data_));
  }
  const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(data_); }

  // Of numbers, booleans and None: their own. Of strings: any byte's. Of lists and dicts: that of their brackets.
  Origin origin() const;
  // How deep lists and dicts lie inside one another.
  int depth() const;
  // How much walking through all of it costs: values inside, and 64 bytes of a string as one. A value that is inside
  // several times counts as often.
  int64_t weight() const;

  // jinja2's words for it in errors: "str", "list", "dict".
  const char* type_name() const;
  // What using an undefined value says.
  std::string UndefinedMessage() const;

 private:
  using Data = std::variant<std::monostate, bool, int64_t, double, MarkedString, std::shared_ptr<Object>>;
  Value(Type type, Data data, Origin origin) : type_(type), origin_(origin), data_(std::move(data)) {}

  Type type_ = Type::kUndefined;
  Origin origin_ = Origin::kTemplate;
  bool is_markup_ = false;
  Data data_;
};

// Deeper nested values are refused: everything that walks them is recursive. And so are values that take too long to
// walk through: [x, x] of [y, y] of ... doubles with every pair.
inline constexpr int kMaxValueDepth = 200;
inline constexpr int64_t kMaxValueWeight = int64_t{1} << 26;

struct Object {
  explicit Object(Type type_of) : type(type_of) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  const Type type;
  Origin origin = Origin::kTemplate;  // of the brackets around what is inside
  int depth = 0;
  int64_t weight = 1;

 protected:
  void Hold(const Value& value);
  void Hold(const std::vector<Value>& values);
};

struct UndefinedObject : Object {
  explicit UndefinedObject(std::string what_is) : Object(Type::kUndefined), what(std::move(what_is)) {}
  const std::string what;
};

struct ListObject : Object {
  ListObject(Type list_or_tuple, std::vector<Value> values);
  const std::vector<Value> items;
  bool is_group = false;  // a tuple of the filter groupby, whose items are called grouper and list, too
};

// Keys in the order they came. Also the attributes of a namespace.
struct DictObject : Object {
  explicit DictObject(Type dict_or_namespace = Type::kDict) : Object(dict_or_namespace) {}

  // Requires: key is hashable (CheckHashable).
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  void Set(Value key, Value value);
  void Clear();

  std::vector<std::pair<Value, Value>> entries;

 private:
  size_t Position(const Value& key) const;
  // Hash to position, made when there are many entries.
  std::unordered_multimap<size_t, size_t> index_;
};

struct RangeObject : Object {
  RangeObject(int64_t first, int64_t past, int64_t by) : Object(Type::kRange), start(first), stop(past), step(by) {}
  int64_t size() const;
  const int64_t start, stop, step;
};

struct DictViewObject : Object {
  enum class Part { kKeys, kValues, kItems };
  DictViewObject(Value of, Part which);
  std::vector<Value> Items() const;
  const Value dict;
  const Part part;
};

struct GeneratorObject : Object {
  explicit GeneratorObject(std::vector<Value> values);
  std::vector<Value> items;
  size_t next = 0;
};

struct CyclerObject : Object {
  explicit CyclerObject(std::vector<Value> values);
  const std::vector<Value> items;
  size_t position = 0;
};

struct JoinerObject : Object {
  explicit JoinerObject(Value between) : Object(Type::kJoiner), separator(std::move(between)) { Hold(separator); }
  const Value separator;
  bool is_used = false;
};

// ---- What Python does with values of any type. Recursion stops at kMaxValueDepth. ----

bool IsTrue(const Value& value);
bool Equals(const Value& a, const Value& b, int depth = 0);
// -1, 0, 1, or 2 where neither is less (NaN); an error where the types have no order.
Result<int> Compare(const Value& a, const Value& b, int depth = 0);
// Keys of dicts must be.
Status CheckHashable(const Value& value);
size_t Hash(const Value& value);

// ---- From JSON. ----

// Every string and number takes `origin`. An error for integers beyond 64 bits, invalid UTF-8, nesting too deep.
Result<Value> ValueFromJson(const OrderedJson& json, Origin origin);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_VALUE_H_
