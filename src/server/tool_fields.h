// The fields of a chat that offer functions to the model: tools, tool_choice, parallel_tool_calls.
#ifndef HEADWISE_SERVER_TOOL_FIELDS_H_
#define HEADWISE_SERVER_TOOL_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/json_fields.h"

namespace headwise {

inline constexpr size_t kMaxTools = 128;  // OpenAI's

struct ApiTool {
  std::string name;    // letters, digits, ".", "_" and "-", 1 to 64
  std::string schema;  // of its arguments, an object, normalised (grammar/schema_check.h)
};

struct ApiTools {
  std::vector<ApiTool> tools;  // those that may be called; empty: none
  std::string json;            // all of them, the list as the client wrote it
  bool must_call = false;      // an answer is a call: "required", or a named function
  bool several = true;         // calls in one answer
};

// Nothing to call where tool_choice is "none". `body` is the text of the object.
ApiTools ReadTools(JsonFields& fields, std::string_view body);

}  // namespace headwise

#endif  // HEADWISE_SERVER_TOOL_FIELDS_H_
