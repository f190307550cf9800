#pragma once
// Levels 1, 3 and 4 against any server with OpenAI's API.

#include "app/verify_report.h"
#include "client/http_requests.h"

#include <string>

namespace nibble::app {

struct ServerSubject {
  const client::Server& server;
  std::string model;  // the name to ask for
};

void verify_server_smoke(const ServerSubject& subject, VerifyChecks& checks);
void verify_server_stress(const ServerSubject& subject, VerifyChecks& checks);
void verify_server_performance(const ServerSubject& subject, VerifyChecks& checks);

// The first model that the server lists. Throws Error(kIo) if it lists none.
[[nodiscard]] std::string first_model(const client::Server& server);

}  // namespace nibble::app
