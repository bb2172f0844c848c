#include "loadgen/load_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace headwise {
namespace {

bool IsVisibleAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
}

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

// "name:80" or "[::1]:80" in two. False where it is neither.
bool SplitAuthority(std::string_view authority, LoadTarget& target) {
  size_t host_end;
  if (authority.starts_with('[')) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return false;
    target.host = authority.substr(1, bracket - 1);
    host_end = bracket + 1;
  } else {
    host_end = std::min(authority.find(':'), authority.size());
    target.host = authority.substr(0, host_end);
  }
  if (target.host.empty()) return false;
  const std::string_view rest = authority.substr(host_end);
  if (rest.empty()) return true;
  target.port = rest.substr(1);
  return rest.front() == ':' && IsPort(target.port);
}

}  // namespace

std::string LoadTarget::Authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}:{}", is_v6 ? fmt::format("[{}]", host) : host, port);
}

Result<LoadTarget> ParseBaseUrl(std::string_view url) {
  const auto wrong = [&](std::string_view what) {
    return Status::InvalidInput(
        fmt::format("\"{}\": {}, expected an address such as http://127.0.0.1:8080 or https://name/v1", url, what));
  };
  LoadTarget target;
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    target.is_tls = true;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return wrong("it begins with neither http:// nor https://");
  }
  target.port = target.is_tls ? "443" : "80";
  if (!IsVisibleAscii(rest)) return wrong("it has spaces or characters that are no ASCII");
  if (rest.find_first_of("?#@") != std::string_view::npos) return wrong("it has a query, a fragment or a user");
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (!SplitAuthority(rest.substr(0, slash), target)) return wrong("its host or port is none");
  std::string_view path = rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path == "/v1" || path.ends_with("/v1")) path.remove_suffix(3);
  target.path = path;
  return target;
}

}  // namespace headwise
