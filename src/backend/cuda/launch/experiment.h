#pragma once
// Of this branch alone: what is tried, by environment.

#include <cstdlib>

namespace nibble::backend::cuda {

inline int experiment(const char* name, int otherwise = 0) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace nibble::backend::cuda
