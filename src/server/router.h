// From a method and a path to the endpoint that answers.
#ifndef HEADWISE_SERVER_ROUTER_H_
#define HEADWISE_SERVER_ROUTER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace headwise {

class Router {
 public:
  // `rest`: what stands in the place of a path's "*".
  using Endpoint =
      std::function<void(const HttpRequest& request, const std::string& rest, std::shared_ptr<HttpReply> reply)>;

  // A path that ends with "/*" takes whatever stands there, slashes too, but not nothing.
  void Add(std::string method, std::string path, Endpoint endpoint);

  // 404 where no endpoint has the path, 405 with the methods that it has where none has the method. OPTIONS is answered
  // here.
  void Handle(const HttpRequest& request, std::shared_ptr<HttpReply> reply) const;

 private:
  struct Route {
    std::string method;
    std::string path;  // without the "*"
    bool takes_rest = false;
    Endpoint endpoint;

    bool Matches(std::string_view asked) const {
      return takes_rest ? asked.starts_with(path) && asked.size() > path.size() : asked == path;
    }
  };
  std::vector<Route> routes_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_ROUTER_H_
