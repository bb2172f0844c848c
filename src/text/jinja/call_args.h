// What a function, filter or test is called with, and how it finds its parameters in that.
#ifndef HEADWISE_TEXT_JINJA_CALL_ARGS_H_
#define HEADWISE_TEXT_JINJA_CALL_ARGS_H_

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace headwise::jinja {

class Interpreter;

struct CallArgs {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;

  bool empty() const { return values.empty() && named.empty(); }
};

// A parameter each, null where it was not given. What is left over is an error, and so is a missing one of the first
// `num_required`.
Status BindParameters(const CallArgs& args, std::span<const char* const> names, size_t num_required,
                      std::span<const Value*> found);

template <size_t N>
Result<std::array<const Value*, N>> Bind(const CallArgs& args, const char* const (&names)[N], size_t num_required) {
  std::array<const Value*, N> found{};
  HW_RETURN_IF_ERROR(BindParameters(args, names, num_required, found));
  return found;
}

// For those without parameters.
Status BindNothing(const CallArgs& args);

// Values of one type, or an error that names the parameter. `otherwise` is for one that was not given.
Result<int64_t> IntArg(const Value* value, const char* name, int64_t otherwise);
Result<bool> TruthArg(const Value* value, bool otherwise);
Result<MarkedString> StringArg(const Value* value, const char* name);

// Filters take what stands before the bar first. Tests give a boolean; globals and methods have what they belong to.
using FilterFunction = Result<Value> (*)(Interpreter&, const Value& input, const CallArgs& args);
using TestFunction = Result<bool> (*)(Interpreter&, const Value& input, const CallArgs& args);
using MethodFunction = Result<Value> (*)(Interpreter&, const Value& self, const CallArgs& args);

// A global, or a method with what it belongs to.
struct FunctionObject : Object {
  FunctionObject(std::string its_name, Value belongs_to, MethodFunction calls);
  const std::string name;
  const Value self;
  const MethodFunction function;
};

// Null where there is none of that name.
FilterFunction FindFilter(std::string_view name);
TestFunction FindTest(std::string_view name);
MethodFunction FindGlobal(std::string_view name);
// Methods of str, list, tuple, dict, range, loop and cycler.
MethodFunction FindMethod(Type type, std::string_view name);
// Methods that Python has and the sandbox refuses, because they change a list or a dict.
bool IsMutatingMethod(Type type, std::string_view name);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_CALL_ARGS_H_
