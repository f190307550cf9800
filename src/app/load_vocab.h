#pragma once
// Below which number all token ids of a served model are ordinary tokens.

#include "client/http_requests.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::app {

struct Vocab {
  int64_t size = 32000;                        // which nearly every model has
  std::string_view from = "nobody says more";  // or who does
};

// By the vocab_size that the server lists, as nibble serve does; else by the model's name, where it is one of ours.
[[nodiscard]] Vocab vocab_of(const client::Server& server, const std::string& model);

}  // namespace nibble::app
