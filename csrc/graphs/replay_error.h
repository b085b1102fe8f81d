// ReplayError: a recorded graph does not hold for a call.
#pragma once

#include "common/error.h"

namespace staticrt::graphs {

// A result has another size than at the capture. What the replay wrote is as before.
class ReplayError : public InputError {
  using InputError::InputError;
};

}  // namespace staticrt::graphs
