#pragma once
// A system library that is opened when it is needed. A program linked with it would not start on a system without it
// (docs/decisions/0016).

#include "base/error.h"

#include <string>
#include <string_view>

#include <dlfcn.h>

namespace nibble {

class SharedLibrary {
 public:
  struct Spec {
    const char* file;           // "libcurl.so.4"
    std::string_view name;      // "libcurl"
    std::string_view purpose;   // "to fetch with"
    std::string_view packages;  // "apt install libcurl4, or dnf install libcurl"
  };
  // The library stays open. Throws Error(kUnsupported), which says what to install.
  explicit SharedLibrary(const Spec& spec) : name_(spec.name), handle_(dlopen(spec.file, RTLD_NOW)) {
    if (handle_ == nullptr)
      throw Error(Code::kUnsupported, "want {} {}, found none ({}). Install it: {}", spec.name, spec.purpose, dlerror(),
                  spec.packages);
  }

  // A function; converts to the pointer type it is assigned to.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address);
    }
  };
  // Throws Error(kUnsupported) if the library has no such function.
  [[nodiscard]] Symbol find(const char* symbol) const {
    if (void* address = dlsym(handle_, symbol)) return {address};
    throw Error(Code::kUnsupported, "want a {} that has {}, found an older one: update it", name_, symbol);
  }

 private:
  std::string name_;
  void* handle_;
};

}  // namespace nibble
