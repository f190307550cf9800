#pragma once
// A library of the system that is opened when somebody needs it: a program that was linked with it would not start
// where it is missing (docs/decisions/0016).

#include <string>
#include <string_view>

namespace nibble {

class SharedLibrary {
 public:
  struct Wanted {
    const char* file;           // "libcurl.so.4"
    std::string_view name;      // "libcurl"
    std::string_view purpose;   // "to fetch with"
    std::string_view packages;  // "apt install libcurl4, or dnf install libcurl"
  };
  // It stays open. Throws Error(kUnsupported), which says what to install.
  explicit SharedLibrary(const Wanted& wanted);

  // A function, as the pointer that it is assigned to.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address);
    }
  };
  // Throws Error(kUnsupported) where the library has none of this name.
  [[nodiscard]] Symbol find(const char* symbol) const;

 private:
  std::string name_;
  void* handle_;
};

}  // namespace nibble
