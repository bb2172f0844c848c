// Methods of strings, lists, dicts and of what jinja2 gives templates.
#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "text/jinja/call_args.h"
#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

using Methods = std::unordered_map<std::string_view, MethodFunction>;

// What a method of a string gives is as safe as the string.
Value Like(const Value& self, MarkedString text) {
  return self.is_markup() ? Value::Markup(std::move(text)) : Value::String(std::move(text));
}

Status Mistyped(const char* name, const Value& value, const char* expected) {
  return Status::InvalidInput(fmt::format("parameter '{}' is a {}, expected {}", name, value.type_name(), expected));
}

// None and absent are the same.
const Value* Given(const Value* value) {
  return value && !value->is_none() ? value : nullptr;
}

template <StripSide side>
Result<Value> StripMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"chars"}, 0));
  std::optional<std::string_view> chars;
  if (const Value* given = Given(found[0])) {
    if (!given->is_string()) return Mistyped("chars", *given, "str");
    chars = given->view();
  }
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(self.string().size(), chars ? chars->size() : 0));
  return Like(self, self.string().Part(Strip(self.view(), chars, side)));
}

template <bool from_right>
Result<Value> SplitMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"sep", "maxsplit"}, 0));
  HW_ASSIGN_OR_RETURN(const int64_t max_splits, IntArg(found[1], "maxsplit", -1));
  std::optional<std::string_view> separator;
  if (const Value* given = Given(found[0])) {
    if (!given->is_string()) return Mistyped("sep", *given, "str");
    if (given->string().empty()) return Status::InvalidInput("an empty separator");
    separator = given->view();
  }
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(self.string().size(), separator ? separator->size() : 8));
  if (separator) {
    const auto num_parts = static_cast<size_t>(CountPart(self.view(), *separator) + 1);
    HW_RETURN_IF_ERROR(interpreter.Make(num_parts * sizeof(std::string_view)));
  } else {
    HW_RETURN_IF_ERROR(interpreter.Make(self.string().size() / 2));
  }
  const auto parts =
      from_right ? SplitFromRight(self.view(), separator, max_splits) : Split(self.view(), separator, max_splits);
  return interpreter.NewListOfParts(self.string(), parts, self.is_markup());
}

Result<Value> SplitLinesMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"keepends"}, 0));
  HW_ASSIGN_OR_RETURN(const bool keep_ends, TruthArg(found[0], false));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(self.string().size(), 8));
  return interpreter.NewListOfParts(self.string(), SplitLines(self.view(), keep_ends), self.is_markup());
}

// The part of a string that `start` and `end` leave, by characters; nothing if start lies behind its end.
std::optional<MarkedString> PartBetween(const MarkedString& text, int64_t start, std::optional<int64_t> end) {
  const int64_t size = CountCharacters(text.view());
  const auto from_either_end = [&](int64_t at) { return std::max<int64_t>(at < 0 ? at + size : at, 0); };
  const int64_t first = from_either_end(start), last = std::min(end ? from_either_end(*end) : size, size);
  if (first > size || first > last) return std::nullopt;
  return text.Substr(ByteOfCharacter(text.view(), first), ByteOfCharacter(text.view(), last));
}

// The three parameters of find, count, startswith and their like.
struct PartSearch {
  const Value* part;
  std::optional<MarkedString> within;
};
Result<PartSearch> BindSearch(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"sub", "start", "end"}, 1));
  HW_ASSIGN_OR_RETURN(const int64_t start, IntArg(Given(found[1]), "start", 0));
  std::optional<int64_t> end;
  if (Given(found[2])) {
    HW_ASSIGN_OR_RETURN(end, IntArg(found[2], "end", 0));
  }
  const size_t part_size = found[0]->is_string() ? found[0]->string().size() : 0;
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(3 * self.string().size(), part_size));
  if (start == 0 && !end) return PartSearch{found[0], self.string()};
  return PartSearch{found[0], PartBetween(self.string(), start, end)};
}

template <bool at_end>
Result<Value> StartsWith(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const PartSearch search, BindSearch(interpreter, self, args));
  const auto holds = [&](const Value& part) {
    const std::string_view text = search.within->view();
    return at_end ? text.ends_with(part.view()) : text.starts_with(part.view());
  };
  if (search.part->is_string()) return Value::Bool(search.within && holds(*search.part));
  if (search.part->type() != Type::kTuple) return Mistyped("prefix", *search.part, "str or a tuple of str");
  bool any = false;
  HW_RETURN_IF_ERROR(interpreter.Spend(static_cast<int64_t>(search.part->items().size())));
  for (const Value& one : search.part->items()) {
    if (!one.is_string()) return Mistyped("prefix", one, "str");
    any |= search.within && holds(one);
  }
  return Value::Bool(any);
}

enum class IfNone { kMinusOne, kError };
template <bool from_right, IfNone if_none>
Result<Value> FindMethodOfStr(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const PartSearch search, BindSearch(interpreter, self, args));
  if (!search.part->is_string()) return Mistyped("sub", *search.part, "str");
  size_t at = std::string_view::npos;
  if (search.within) {
    const std::string_view text = search.within->view();
    at = from_right ? text.rfind(search.part->view()) : text.find(search.part->view());
  }
  if (at == std::string_view::npos) {
    if (if_none == IfNone::kError) return Status::InvalidInput("the part is not in the string");
    return Value::Int(-1);
  }
  // What is left out in front counts.
  const char* const found = search.within->view().data() + at;
  if (search.within->empty()) {
    HW_ASSIGN_OR_RETURN(const auto bound, Bind(args, {"sub", "start", "end"}, 1));
    HW_ASSIGN_OR_RETURN(const int64_t start, IntArg(Given(bound[1]), "start", 0));
    const int64_t size = CountCharacters(self.view());
    return Value::Int(std::clamp<int64_t>(start < 0 ? start + size : start, 0, size));
  }
  return Value::Int(CountCharacters(self.view().substr(0, static_cast<size_t>(found - self.view().data()))));
}

Result<Value> CountInStr(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const PartSearch search, BindSearch(interpreter, self, args));
  if (!search.part->is_string()) return Mistyped("sub", *search.part, "str");
  return Value::Int(search.within ? CountPart(search.within->view(), search.part->view()) : 0);
}

Result<Value> ReplaceMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"old", "new", "count"}, 2));
  HW_ASSIGN_OR_RETURN(const MarkedString from, StringArg(found[0], "old"));
  HW_ASSIGN_OR_RETURN(MarkedString to, StringArg(found[1], "new"));
  HW_ASSIGN_OR_RETURN(const int64_t count, IntArg(found[2], "count", -1));
  if (self.is_markup() && !found[1]->is_markup()) to = MarkedString(EscapeHtml(to));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(self.string().size(), from.size()));
  const int64_t occurrences = CountPart(self.view(), from.view());
  const int64_t times = count < 0 ? occurrences : std::min(count, occurrences);
  HW_RETURN_IF_ERROR(interpreter.Make(static_cast<size_t>(times) * (to.size() + 2 * sizeof(size_t))));
  return interpreter.NewString(Replace(self.string(), from.view(), to, count), self.is_markup());
}

template <Case to>
Result<Value> CaseMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(self.string().size(), 32));
  return interpreter.NewString(MapCase(self.string(), to), self.is_markup());
}

template <CharacterClass of>
Result<Value> ClassMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(self.string().size(), 32));
  return Value::Bool(AreAll(self.view(), of));
}

Result<Value> JoinMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"iterable"}, 1));
  HW_ASSIGN_OR_RETURN(const std::vector<Value> items, interpreter.Iterate(*found[0]));
  MarkedBuffer joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) return Mistyped("iterable", items[i], "a list of str");
    HW_RETURN_IF_ERROR(interpreter.Make(items[i].string().size() + self.string().size()));
    if (i > 0) joined.Append(self.string());
    joined.Append(items[i].string());
  }
  return interpreter.NewString(std::move(joined), self.is_markup());
}

template <bool at_end>
Result<Value> RemoveMethod(Interpreter&, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"part"}, 1));
  HW_ASSIGN_OR_RETURN(const MarkedString part, StringArg(found[0], "part"));
  const MarkedString& text = self.string();
  if (at_end && text.view().ends_with(part.view())) return Like(self, text.Substr(0, text.size() - part.size()));
  if (!at_end && text.view().starts_with(part.view())) return Like(self, text.Substr(part.size(), text.size()));
  return self;
}

template <bool from_right>
Result<Value> PartitionMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"sep"}, 1));
  HW_ASSIGN_OR_RETURN(const MarkedString separator, StringArg(found[0], "sep"));
  if (separator.empty()) return Status::InvalidInput("an empty separator");
  const MarkedString& text = self.string();
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(text.size(), separator.size()));
  const size_t at = from_right ? text.view().rfind(separator.view()) : text.view().find(separator.view());
  const Value nothing = Like(self, MarkedString());
  if (at == std::string_view::npos) {
    return from_right ? interpreter.NewTuple({nothing, nothing, self}) : interpreter.NewTuple({self, nothing, nothing});
  }
  const size_t end = at + separator.size();
  return interpreter.NewTuple(
      {Like(self, text.Substr(0, at)), Like(self, text.Substr(at, end)), Like(self, text.Substr(end, text.size()))});
}

// Where the text stands in a wider field.
enum class Place { kLeft, kCenter, kRight, kZeros };
template <Place place>
Result<Value> PadMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"width", "fillchar"}, 1));
  HW_ASSIGN_OR_RETURN(const int64_t width, IntArg(found[0], "width", 0));
  MarkedString fill(place == Place::kZeros ? "0" : " ", Origin::kTemplate);
  if (found[1] && place != Place::kZeros) {
    HW_ASSIGN_OR_RETURN(fill, StringArg(found[1], "fillchar"));
    if (CountCharacters(fill.view()) != 1) return Status::InvalidInput("parameter 'fillchar': expected one character");
  }
  const int64_t missing = width - CountCharacters(self.view());
  if (missing <= 0) return self;
  HW_RETURN_IF_ERROR(interpreter.Make(static_cast<size_t>(std::min(missing, int64_t{1} << 40)) * fill.size()));
  const int64_t before = place == Place::kLeft     ? 0
                         : place == Place::kCenter ? missing / 2 + (missing & width & 1)
                                                   : missing;
  MarkedBuffer out;
  const std::string_view text = self.view();
  const bool has_sign = place == Place::kZeros && !text.empty() && (text[0] == '+' || text[0] == '-');
  out.Append(self.string().Substr(0, has_sign));
  for (int64_t i = 0; i < before; ++i) out.Append(fill);
  out.Append(self.string().Substr(has_sign, text.size()));
  for (int64_t i = before; i < missing; ++i) out.Append(fill);
  return interpreter.NewString(std::move(out), self.is_markup());
}

Result<Value> FormatMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  return FormatBraces(interpreter, self.string(), args);
}

const Methods& StrMethods() {
  static const Methods kMethods = {
      {"strip", StripMethod<StripSide::kBoth>},
      {"lstrip", StripMethod<StripSide::kLeft>},
      {"rstrip", StripMethod<StripSide::kRight>},
      {"split", SplitMethod<false>},
      {"rsplit", SplitMethod<true>},
      {"splitlines", SplitLinesMethod},
      {"startswith", StartsWith<false>},
      {"endswith", StartsWith<true>},
      {"find", FindMethodOfStr<false, IfNone::kMinusOne>},
      {"rfind", FindMethodOfStr<true, IfNone::kMinusOne>},
      {"index", FindMethodOfStr<false, IfNone::kError>},
      {"rindex", FindMethodOfStr<true, IfNone::kError>},
      {"count", CountInStr},
      {"replace", ReplaceMethod},
      {"upper", CaseMethod<Case::kUpper>},
      {"lower", CaseMethod<Case::kLower>},
      {"casefold", CaseMethod<Case::kLower>},
      {"swapcase", CaseMethod<Case::kSwap>},
      {"title", CaseMethod<Case::kTitle>},
      {"capitalize", CaseMethod<Case::kCapitalize>},
      {"isalnum", ClassMethod<CharacterClass::kAlnum>},
      {"isalpha", ClassMethod<CharacterClass::kAlpha>},
      {"isascii", ClassMethod<CharacterClass::kAscii>},
      {"isdecimal", ClassMethod<CharacterClass::kDecimal>},
      {"isdigit", ClassMethod<CharacterClass::kDigit>},
      {"isnumeric", ClassMethod<CharacterClass::kNumeric>},
      {"isspace", ClassMethod<CharacterClass::kSpace>},
      {"isupper", ClassMethod<CharacterClass::kUpper>},
      {"islower", ClassMethod<CharacterClass::kLower>},
      {"istitle", ClassMethod<CharacterClass::kTitle>},
      {"isprintable", ClassMethod<CharacterClass::kPrintable>},
      {"join", JoinMethod},
      {"removeprefix", RemoveMethod<false>},
      {"removesuffix", RemoveMethod<true>},
      {"partition", PartitionMethod<false>},
      {"rpartition", PartitionMethod<true>},
      {"ljust", PadMethod<Place::kLeft>},
      {"center", PadMethod<Place::kCenter>},
      {"rjust", PadMethod<Place::kRight>},
      {"zfill", PadMethod<Place::kZeros>},
      {"format", FormatMethod},
  };
  return kMethods;
}

// ---- Lists and dicts. ----

Result<Value> CountInList(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"value"}, 1));
  int64_t count = 0;
  for (const Value& item : self.items()) {
    HW_RETURN_IF_ERROR(interpreter.Spend(1));
    HW_ASSIGN_OR_RETURN(const bool is_equal, interpreter.AreEqual(item, *found[0]));
    count += is_equal;
  }
  return Value::Int(count);
}

Result<Value> IndexInList(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"value"}, 1));
  for (size_t i = 0; i < self.items().size(); ++i) {
    HW_RETURN_IF_ERROR(interpreter.Spend(1));
    HW_ASSIGN_OR_RETURN(const bool is_equal, interpreter.AreEqual(self.items()[i], *found[0]));
    if (is_equal) return Value::Int(static_cast<int64_t>(i));
  }
  return Status::InvalidInput("the value is not in the list");
}

// Nothing changes them, so that they may be shared.
Result<Value> CopyMethod(Interpreter&, const Value& self, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  return self;
}

Result<Value> GetMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  if (!args.named.empty()) return Status::InvalidInput("named arguments, expected none");
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"key", "default"}, 1));
  HW_RETURN_IF_ERROR(CheckHashable(*found[0]));
  HW_RETURN_IF_ERROR(interpreter.SpendOn(*found[0]));
  if (const Value* value = self.dict().Find(*found[0])) return *value;
  return found[1] ? *found[1] : Value::None();
}

template <DictViewObject::Part part>
Result<Value> ViewMethod(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_RETURN_IF_ERROR(interpreter.Make(sizeof(DictViewObject)));
  return Value::Of(std::make_shared<DictViewObject>(self, part));
}

// ---- Loops and cyclers. ----

Result<Value> LoopCycle(Interpreter&, const Value& self, const CallArgs& args) {
  if (args.values.empty() || !args.named.empty()) return Status::InvalidInput("expected the values to cycle through");
  return args.values[self.as<LoopObject>().position % args.values.size()];
}

Result<Value> LoopChanged(Interpreter& interpreter, const Value& self, const CallArgs& args) {
  auto& loop = self.as<LoopObject>();
  if (!args.named.empty()) return Status::InvalidInput("named arguments, expected none");
  bool is_same = loop.has_changed_before && loop.last_changed.size() == args.values.size();
  for (size_t i = 0; i < args.values.size(); ++i) {
    // They are kept, and what is kept may not lead back here.
    constexpr int kMaxDepth = 32;
    if (args.values[i].type() == Type::kLoop || args.values[i].depth() > kMaxDepth || loop.is_over) {
      return Status::InvalidInput("expected values of a loop under way, and no loops");
    }
    if (!is_same) continue;
    HW_ASSIGN_OR_RETURN(is_same, interpreter.AreEqual(loop.last_changed[i], args.values[i]));
  }
  loop.has_changed_before = true;
  if (!is_same) loop.last_changed = args.values;
  return Value::Bool(!is_same);
}

Result<Value> CyclerNext(Interpreter&, const Value& self, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  auto& cycler = self.as<CyclerObject>();
  const size_t at = cycler.position;
  cycler.position = (at + 1) % cycler.items.size();
  return cycler.items[at];
}

Result<Value> CyclerReset(Interpreter&, const Value& self, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  self.as<CyclerObject>().position = 0;
  return Value::None();
}

const Methods& MethodsOf(Type type) {
  using Part = DictViewObject::Part;
  static const Methods kNone;
  static const Methods kList = {{"count", CountInList}, {"index", IndexInList}, {"copy", CopyMethod}};
  static const Methods kTuple = {{"count", CountInList}, {"index", IndexInList}};
  static const Methods kDict = {{"get", GetMethod},
                                {"items", ViewMethod<Part::kItems>},
                                {"keys", ViewMethod<Part::kKeys>},
                                {"values", ViewMethod<Part::kValues>},
                                {"copy", CopyMethod}};
  static const Methods kLoop = {{"cycle", LoopCycle}, {"changed", LoopChanged}};
  static const Methods kCycler = {{"next", CyclerNext}, {"reset", CyclerReset}};
  switch (type) {
    case Type::kString:
      return StrMethods();
    case Type::kList:
      return kList;
    case Type::kTuple:
      return kTuple;
    case Type::kDict:
      return kDict;
    case Type::kLoop:
      return kLoop;
    case Type::kCycler:
      return kCycler;
    default:
      return kNone;
  }
}

}  // namespace

MethodFunction FindMethod(Type type, std::string_view name) {
  const Methods& methods = MethodsOf(type);
  const auto at = methods.find(name);
  return at == methods.end() ? nullptr : at->second;
}

bool IsMutatingMethod(Type type, std::string_view name) {
  static const std::unordered_set<std::string_view> kOfLists = {"append", "clear", "pop",    "reverse",
                                                                "insert", "sort",  "extend", "remove"};
  static const std::unordered_set<std::string_view> kOfDicts = {"clear", "pop", "popitem", "setdefault", "update"};
  return (type == Type::kList && kOfLists.contains(name)) || (type == Type::kDict && kOfDicts.contains(name));
}

}  // namespace headwise::jinja
