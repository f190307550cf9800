#include "base/shared_library.h"

#include "base/error.h"

#include <dlfcn.h>

namespace nibble {

SharedLibrary::SharedLibrary(const Wanted& wanted) : name_(wanted.name), handle_(dlopen(wanted.file, RTLD_NOW)) {
  if (handle_ == nullptr)
    throw Error(Code::kUnsupported, "want {} {}, found none ({}). Install it: {}", wanted.name, wanted.purpose,
                dlerror(), wanted.packages);
}

SharedLibrary::Symbol SharedLibrary::find(const char* symbol) const {
  if (void* address = dlsym(handle_, symbol)) return {address};
  throw Error(Code::kUnsupported, "want a {} that has {}, found an older one: update it", name_, symbol);
}

}  // namespace nibble
