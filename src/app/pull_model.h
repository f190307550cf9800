#pragma once
// A model of the Hub into the cache, as a user sees it.

#include "app/terminal.h"
#include "hub/pull.h"

#include <optional>
#include <string>

namespace nibble::app {

struct PullView {
  Terminal& terminal;
  bool ask = false;  // first, with the size
};

// What was pulled, or was there; none where the user said no. Throws what hub::pull() throws, and Interrupted.
[[nodiscard]] std::optional<hub::PullPlan> pull_model(const hub::PullRequest& request, const hub::Settings& settings,
                                                      const PullView& view);

}  // namespace nibble::app
