#pragma once
// Pulls a model of the Hub into the cache, with what the user sees of it.

#include "app/setup/terminal.h"
#include "hub/pull.h"

#include <optional>

namespace nibble::app {

struct PullView {
  Terminal& terminal;
  bool ask = false;  // first, showing the size
};

// What was pulled or already there; none if the user said no. Throws what hub::pull() throws, and Interrupted.
[[nodiscard]] std::optional<hub::PullPlan> pull_model(const hub::PullRequest& request, const hub::Settings& settings,
                                                      const PullView& view);

}  // namespace nibble::app
