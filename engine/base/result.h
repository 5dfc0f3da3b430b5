// Result<T>: a value or an Error, used by every function of the engine that can fail.
//
//   Result<ModelFile> file = ModelFile::Open(path);
//   if (!file) return Fail(file.error());
//
// No exception crosses an engine interface; exceptions of libraries are caught where they are
// called and become an Error.

#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "engine/base/error.h"

namespace mk {

template <typename T>
using Result = tl::expected<T, Error>;

using Status = Result<void>;

inline tl::unexpected<Error> Fail(ErrorCode code, std::string message, std::string hint = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(hint)});
}

inline tl::unexpected<Error> Fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mk
