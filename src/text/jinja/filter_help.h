// What filters of several files share.
#ifndef HEADWISE_TEXT_JINJA_FILTER_HELP_H_
#define HEADWISE_TEXT_JINJA_FILTER_HELP_H_

#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/call_args.h"
#include "text/jinja/interpreter.h"

namespace headwise::jinja {

using Filters = std::unordered_map<std::string_view, FilterFunction>;

// By kind: filters of one value, of lists, and those that call other filters and tests.
const Filters& StringFilters();
const Filters& ListFilters();
const Filters& MappingFilters();

// item.name.of[0] as the parameter `attribute` writes it: names and numbers with dots between them, or one number.
Result<Value> AttributeByPath(Interpreter& interpreter, const Value& item, const Value& path);

// The key that sorting, unique and groupby compare: strings in lower case, unless case counts.
Result<Value> SortKey(Interpreter& interpreter, const Value& item, const Value* path, bool case_sensitive);

// In order of their keys, equal ones as they came. Requires: keys.size() == items.size().
Status SortByKeys(Interpreter& interpreter, bool descends, std::vector<Value>& keys, std::vector<Value>& items);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_FILTER_HELP_H_
