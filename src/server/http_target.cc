#include "server/http_target.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "text/utf8.h"

namespace headwise {
namespace {

Status Refused(std::string_view why) {
  return Status::InvalidInput("the target of the request " + std::string(why));
}

bool IsControl(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// `prefix` is in lower case.
bool StartsWithIgnoringCase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b);
         });
}

Result<std::string> DecodePath(std::string_view encoded) {
  std::string path;
  path.reserve(encoded.size());
  for (size_t i = 0; i < encoded.size(); ++i) {
    char c = encoded[i];
    if (c == '%') {
      const int high = i + 1 < encoded.size() ? HexDigit(encoded[i + 1]) : -1;
      const int low = i + 2 < encoded.size() ? HexDigit(encoded[i + 2]) : -1;
      if (high < 0 || low < 0) return Refused("has a % without two hexadecimal digits behind it");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (IsControl(c)) return Refused("has a control character in it");
    path += c;
  }
  if (FindInvalidUtf8(path)) return Refused("is not UTF-8");
  return path;
}

// Of the decoded path: whoever takes it for a file's must not be led out of its folder by an escape either.
bool HasDotSegment(std::string_view path) {
  while (!path.empty()) {
    path.remove_prefix(1);  // its slash
    const std::string_view segment = path.substr(0, path.find('/'));
    if (segment == "." || segment == "..") return true;
    path.remove_prefix(segment.size());
  }
  return false;
}

}  // namespace

Result<HttpTarget> ParseHttpTarget(std::string_view target) {
  bool is_absolute = false;
  for (const std::string_view scheme : {std::string_view("http://"), std::string_view("https://")}) {
    if (!StartsWithIgnoringCase(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t host_size = std::min(target.find_first_of("/?#"), target.size());
    if (host_size == 0) return Refused("names no host");
    target.remove_prefix(host_size);
    is_absolute = true;
    break;
  }
  if (target.find('#') != std::string_view::npos) return Refused("has a fragment");
  if (std::any_of(target.begin(), target.end(), IsControl)) return Refused("has a control character in it");
  const size_t path_size = std::min(target.find('?'), target.size());
  HttpTarget parsed;
  if (path_size < target.size()) parsed.query = target.substr(path_size + 1);
  if (FindInvalidUtf8(parsed.query)) return Refused("is not UTF-8");
  HW_ASSIGN_OR_RETURN(parsed.path, DecodePath(target.substr(0, path_size)));
  if (parsed.path.empty() && is_absolute) parsed.path = "/";
  if (!parsed.path.starts_with('/')) return Refused("is no path");
  if (HasDotSegment(parsed.path)) return Refused("has a segment . or .. in its path");
  return parsed;
}

Result<std::vector<HttpField>> ParseHttpQuery(std::string_view query) {
  std::string spaced(query);
  std::ranges::replace(spaced, '+', ' ');
  query = spaced;
  std::vector<HttpField> fields;
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
    if (field.empty()) continue;
    const size_t name_size = std::min(field.find('='), field.size());
    HW_ASSIGN_OR_RETURN(std::string name, DecodePath(field.substr(0, name_size)));
    HW_ASSIGN_OR_RETURN(std::string value, DecodePath(field.substr(std::min(name_size + 1, field.size()))));
    fields.push_back({.name = std::move(name), .value = std::move(value)});
  }
  return fields;
}

}  // namespace headwise
