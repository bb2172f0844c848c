#include "text/jinja/template.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/utf8.h"

namespace headwise::jinja {

Status Context::SetJson(std::string name, const OrderedJson& json, Origin origin) {
  auto value = ValueFromJson(json, origin);
  if (!value.ok()) return std::move(value).status().Annotate(name);
  Set(std::move(name), std::move(value).value());
  return Status::Ok();
}

Status Context::SetMessages(const OrderedJson& messages, std::span<const std::string_view> trusted_roles) {
  if (!messages.is_array()) {
    return Status::InvalidInput(fmt::format("messages: found {}, expected an array", messages.type_name()));
  }
  std::vector<Value> items;
  for (size_t i = 0; i < messages.size(); ++i) {
    auto value = ValueFromJson(messages[i], Origin::kContext);
    if (!value.ok()) return std::move(value).status().Annotate(fmt::format("message {}", i));
    if (value->type() == Type::kDict) {
      auto& message = value->as<DictObject>();
      const Value* role = message.Find("role");
      if (role && role->is_string() &&
          std::find(trusted_roles.begin(), trusted_roles.end(), role->view()) != trusted_roles.end()) {
        message.Set(Value::String("role"), Value::String(std::string(role->view())));
      }
    }
    items.push_back(std::move(value).value());
  }
  Set("messages", Value::List(std::move(items), Origin::kContext));
  return Status::Ok();
}

const Value* Context::Find(const std::string& name) const {
  const auto at = values_.find(name);
  return at == values_.end() ? nullptr : &at->second;
}

Result<Template> Template::Parse(std::string_view source) {
  if (source.size() > kMaxBytes) {
    return Status::InvalidInput(fmt::format("a template of {} bytes, expected at most {}", source.size(), kMaxBytes));
  }
  if (const auto at = FindInvalidUtf8(source)) {
    return Status::InvalidInput(fmt::format("invalid UTF-8 at byte {} of the template", *at));
  }
  HW_ASSIGN_OR_RETURN(Program program, ParseProgram(source));
  return Template(std::make_shared<const Program>(std::move(program)));
}

bool Template::Reads(std::string_view name) const {
  const auto at = std::find(program_->names.begin(), program_->names.end(), name);
  return at != program_->names.end() && program_->is_read[static_cast<size_t>(at - program_->names.begin())];
}

Result<MarkedText> Template::Render(const Context& context, const RenderOptions& options) const {
  return Interpreter(*program_, context, options).Run();
}

}  // namespace headwise::jinja
