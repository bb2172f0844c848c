// Who may ask: keys, and pages of other origins.
#ifndef HEADWISE_SERVER_ACCESS_H_
#define HEADWISE_SERVER_ACCESS_H_

#include <headwise/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace headwise {

class AccessControl {
 public:
  // Without keys everybody may ask. `allow_origins`: "https://app.example", or "*" for all.
  AccessControl(const std::vector<std::string>& api_keys, std::vector<std::string> allow_origins);

  bool has_keys() const { return !key_hashes_.empty(); }

  // 401 where keys are asked for and the request has none of them.
  std::optional<ApiError> CheckKey(const HttpRequest& request) const;
  // Who asks, as far as keys tell: a name for the request's key that is not the key; empty where no keys are asked for.
  std::string ClientOf(const HttpRequest& request) const;
  // 403 for what a page of another origin would have a browser change or run here: a browser sends it with whatever
  // this machine may do, and the page need not see the answer. Reading is no harm; without AnswerFields no page can.
  std::optional<ApiError> CheckOrigin(const HttpRequest& request) const;
  // Fields of every reply to the request.
  std::vector<HttpField> AnswerFields(const HttpRequest& request) const;

 private:
  bool Allows(std::string_view origin) const;

  std::vector<std::string> key_hashes_;
  std::vector<std::string> allow_origins_;
};

// Keys of a file, one a line; empty lines and those that begin with "#" are none.
Result<std::vector<std::string>> ReadKeyFile(const std::string& path);

// The same reply, with more fields.
std::shared_ptr<HttpReply> WithFields(std::shared_ptr<HttpReply> reply, std::vector<HttpField> fields);

}  // namespace headwise

#endif  // HEADWISE_SERVER_ACCESS_H_
