# Images of Nibble (docs/docker.md):
#   docker build --target cpu  -t nibble .          the CPU product
#   docker build --target cuda -t nibble:cuda .     with CUDA, for every card from Ampere on
#   docker build --target dev  -t nibble:dev .      compilers and tools, for a mounted source tree
ARG CPU_BASE=debian:12-slim
ARG CUDA_BUILD_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG CUDA_BASE=ubuntu:24.04

FROM ${CPU_BASE} AS tools
WORKDIR /src
COPY tools/setup.sh tools/packages.txt tools/
RUN apt-get update && tools/setup.sh && rm -rf /var/lib/apt/lists/*

FROM tools AS dev
RUN apt-get update && apt-get install -y --no-install-recommends git gdb qemu-user openssl && tools/setup.sh python && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 nibble && git config --system --add safe.directory /src
USER nibble
CMD ["bash"]

FROM tools AS build
COPY . .
ARG COMMIT=unknown
ARG JOBS=
RUN cmake --preset cpu -DNIBBLE_BUILD_TESTS=OFF -DNIBBLE_COMMIT=${COMMIT} \
 && cmake --build build/cpu --target nibble --parallel ${JOBS} \
 && tools/check_package.py build/cpu \
 && cmake --install build/cpu --prefix /opt/nibble --strip

FROM ${CUDA_BUILD_BASE} AS build-cuda
WORKDIR /src
COPY tools/setup.sh tools/packages.txt tools/
RUN apt-get update && tools/setup.sh && rm -rf /var/lib/apt/lists/*
COPY . .
ARG COMMIT=unknown
ARG JOBS=
RUN cmake --preset cuda -DNIBBLE_BUILD_TESTS=OFF -DNIBBLE_COMMIT=${COMMIT} \
 && cmake --build build/cuda --target nibble --parallel ${JOBS} \
 && tools/check_package.py build/cuda \
 && cmake --install build/cuda --prefix /opt/nibble --strip

FROM ${CPU_BASE} AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libssl3 libcurl4 libzmq5 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --shell /usr/sbin/nologin --home-dir /var/lib/nibble --create-home nibble
COPY --from=build /opt/nibble /usr/local
# Models: /var/lib/nibble/models, or Hugging Face's cache in /var/lib/nibble/huggingface.
ENV HOME=/var/lib/nibble HF_HOME=/var/lib/nibble/huggingface NIBBLE_HOST=0.0.0.0
WORKDIR /var/lib/nibble
VOLUME /var/lib/nibble
USER 10001
EXPOSE 8000
# Healthy once the model is loaded, which a large one takes minutes for.
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${NIBBLE_PORT:-8000} && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["nibble"]
CMD ["serve"]

# The card's driver comes from the host (NVIDIA Container Toolkit); the CUDA runtime is inside the program.
FROM ${CUDA_BASE} AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libssl3t64 libcurl4t64 libzmq5 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --shell /usr/sbin/nologin --home-dir /var/lib/nibble --create-home nibble
COPY --from=build-cuda /opt/nibble /usr/local
ENV HOME=/var/lib/nibble HF_HOME=/var/lib/nibble/huggingface NIBBLE_HOST=0.0.0.0 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /var/lib/nibble
VOLUME /var/lib/nibble
USER 10001
EXPOSE 8000
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${NIBBLE_PORT:-8000} && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["nibble"]
CMD ["serve"]
