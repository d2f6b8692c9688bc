#pragma once

// The one precompiled header. It saves time and is no interface: sources include what they use.
#include <torch/torch.h>
