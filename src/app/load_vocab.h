#pragma once
// How many token ids of a served model are ordinary tokens: all below this number.

#include "client/http_requests.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::app {

struct Vocab {
  int64_t size = 32000;                        // nearly every model has as many
  std::string_view from = "nobody says more";  // where the number comes from
};

// From the vocab_size that the server lists, as nibble serve does; otherwise from the model's name, if it is a known
// one.
[[nodiscard]] Vocab vocab_of(const client::Server& server, const std::string& model);

}  // namespace nibble::app
