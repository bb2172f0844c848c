#include "server/http_server.h"
