#include "server/access.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"

namespace headwise {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr size_t kMaxKeyBytes = 4096;

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

// Whether nobody else can have the name mean this machine: an address, or localhost. Names of others can be made to
// point here, and a page from there would then be of the same origin.
bool IsFixedHost(std::string_view host) {
  if (host.starts_with('[')) return true;
  const std::string_view name = host.substr(0, host.find(':'));
  return EqualsIgnoringCase(name, "localhost") ||
         (!name.empty() && std::ranges::all_of(name, [](char c) { return (c >= '0' && c <= '9') || c == '.'; }));
}

class ReplyWithFields : public HttpReply {
 public:
  ReplyWithFields(std::shared_ptr<HttpReply> reply, std::vector<HttpField> fields)
      : reply_(std::move(reply)), fields_(std::move(fields)) {}

  void Send(HttpResponse response) override { reply_->Send(Add(std::move(response))); }
  void Begin(HttpResponse response) override { reply_->Begin(Add(std::move(response))); }
  bool Write(std::string_view piece) override { return reply_->Write(piece); }
  void End() override { reply_->End(); }
  void OnGone(std::function<void()> on_gone) override { reply_->OnGone(std::move(on_gone)); }

 private:
  HttpResponse Add(HttpResponse response) {
    response.fields.insert(response.fields.end(), fields_.begin(), fields_.end());
    return response;
  }

  std::shared_ptr<HttpReply> reply_;
  std::vector<HttpField> fields_;
};

}  // namespace

AccessControl::AccessControl(const std::vector<std::string>& api_keys, std::vector<std::string> allow_origins)
    : allow_origins_(std::move(allow_origins)) {
  for (const std::string& key : api_keys) key_hashes_.push_back(Sha256Hex(key));
}

std::optional<ApiError> AccessControl::CheckKey(const HttpRequest& request) const {
  if (key_hashes_.empty()) return std::nullopt;
  const ApiError error{.status = 401, .message = {}, .param = {}, .code = "invalid_api_key"};
  const auto refuse = [&](const char* message) {
    ApiError refused = error;
    refused.message = message;
    return refused;
  };
  const std::string_view field = request.Field("authorization");
  if (field.empty()) {
    return refuse("Authorization: is missing, expected \"Bearer\" and an API key of this server");
  }
  if (!EqualsIgnoringCase(field.substr(0, kBearer.size()), kBearer) || field.size() > kMaxKeyBytes) {
    return refuse("Authorization: expected \"Bearer\" and an API key of this server");
  }
  // All are compared, and in the time that equal ones take: how long it lasts tells nothing of a key.
  const std::string hash = Sha256Hex(field.substr(kBearer.size()));
  bool is_known = false;
  for (const std::string& key_hash : key_hashes_) {
    is_known |= CRYPTO_memcmp(hash.data(), key_hash.data(), key_hash.size()) == 0;
  }
  if (is_known) return std::nullopt;
  return refuse("Authorization: the API key is none of this server's");
}

std::string AccessControl::ClientOf(const HttpRequest& request) const {
  const std::string_view field = request.Field("authorization");
  if (key_hashes_.empty() || field.size() < kBearer.size()) return {};
  return Sha256Hex(field.substr(kBearer.size()));
}

bool AccessControl::Allows(std::string_view origin) const {
  return std::ranges::any_of(allow_origins_,
                             [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

std::optional<ApiError> AccessControl::CheckOrigin(const HttpRequest& request) const {
  const std::string_view origin = request.Field("origin");
  const bool only_reads = request.method == "GET" || request.method == "HEAD";
  if (origin.empty() || only_reads || Allows(origin)) return std::nullopt;
  const std::string_view host = request.Field("host");
  const size_t scheme = origin.find("://");
  const bool is_own =
      scheme != std::string_view::npos && EqualsIgnoringCase(origin.substr(scheme + 3), host) && IsFixedHost(host);
  if (is_own) return std::nullopt;
  return ApiError{.status = 403,
                  .message = fmt::format("Origin: {} may not ask this server; --allow-origin names who may", origin),
                  .param = {},
                  .code = "origin_not_allowed"};
}

std::vector<HttpField> AccessControl::AnswerFields(const HttpRequest& request) const {
  const std::string_view origin = request.Field("origin");
  if (origin.empty() || !Allows(origin)) return {};
  std::vector<HttpField> fields = {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
  if (request.method != "OPTIONS") return fields;
  fields.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
  // What clients send along is theirs to name: nothing here is decided by other fields.
  std::string_view wanted = request.Field("access-control-request-headers");
  fields.push_back(
      {"Access-Control-Allow-Headers", wanted.empty() ? "authorization, content-type" : std::string(wanted)});
  fields.push_back({"Access-Control-Max-Age", "600"});
  return fields;
}

Result<std::vector<std::string>> ReadKeyFile(const std::string& path) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty() && !key.starts_with('#')) keys.push_back(std::move(key));
    begin = end + 1;
  }
  if (!keys.empty()) return keys;
  return Status::InvalidInput(fmt::format("{}: has no key, expected one a line", path));
}

std::shared_ptr<HttpReply> WithFields(std::shared_ptr<HttpReply> reply, std::vector<HttpField> fields) {
  if (fields.empty()) return reply;
  return std::make_shared<ReplyWithFields>(std::move(reply), std::move(fields));
}

}  // namespace headwise
