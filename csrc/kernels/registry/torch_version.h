// The torch this build was made with, as torch.__version__ prints it.
#pragma once

namespace staticrt {
const char* torch_version();
}
