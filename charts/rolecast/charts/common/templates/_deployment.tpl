{{/* A part's Deployment. Takes `root`, `args` (of the image's entrypoint), `s3` (needs credentials), `recreate` (on GPUs), `auth` (keys of the Secret of tokens), `externals` (speaks through endpoints) and `env` (as YAML). */}}
{{- define "common.deployment" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $overrides := include "common.overrides" $root | fromJson -}}
{{- $gpu := hasKey ($values.resources.limits | default dict) (include "common.gpu" $root) -}}
{{- if and (eq (include "common.device" $root) "cuda") (not $gpu) -}}
{{- fail (printf "%s runs on CUDA but asks for no GPU: set %s.resources.limits.\"%s\", or %s.device to cpu" $root.Chart.Name $root.Chart.Name (include "common.gpu" $root) $root.Chart.Name) -}}
{{- end -}}
{{- if hasKey $values.env "ROLECAST_DRAIN_SECONDS" }}
{{- fail (printf "%s.env.ROLECAST_DRAIN_SECONDS: set %s.terminationGraceSeconds, from which it follows" $root.Chart.Name $root.Chart.Name) -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "common.name" $root }}
  labels:
    {{- include "common.labels" $root | nindent 4 }}
    {{- with $values.queue }}
    kueue.x-k8s.io/queue-name: {{ . }}
    kueue.x-k8s.io/priority-class: rolecast-rollout
    {{- end }}
spec:
  {{- if not (or ($values.autoscaling | default dict).enabled ($values.scaling | default dict).enabled) }}
  replicas: {{ $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # Pulling and scheduling take their time beside the start; an upgrade that waits would else give up on a pod that starts as it may.
  progressDeadlineSeconds: {{ add (int $values.startupSeconds) 600 }}
  strategy:
    {{- if and $gpu .recreate }}
    # A new pod beside an old one would wait for a GPU that the old one holds, and nobody waits for an answer of these.
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      {{- if $gpu }}
      # A new pod beside the old one would wait for a GPU that the old one holds.
      maxSurge: 0
      maxUnavailable: 1
      {{- else }}
      maxSurge: 1
      maxUnavailable: 0
      {{- end }}
    {{- end }}
  selector:
    matchLabels:
      {{- include "common.selector" $root | nindent 6 }}
  template:
    metadata:
      labels:
        {{- with $overrides.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "common.podLabels" $root | nindent 8 }}
        {{- if $values.queue }}
        # Kueue copies the queue's name to pods, each a workload of its own, and not the class.
        kueue.x-k8s.io/priority-class: rolecast-rollout
        {{- end }}
      annotations:
        {{- with $overrides.annotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- if kindIs "bool" $overrides.safeToEvict }}
        cluster-autoscaler.kubernetes.io/safe-to-evict: {{ $overrides.safeToEvict | quote }}
        {{- end }}
        {{- with $values.global.rotation }}
        rolecast.dev/rotation: {{ . | quote }}
        {{- end }}
        checksum/endpoints: {{ include "common.endpoints" $root | sha256sum }}
        kubectl.kubernetes.io/default-container: {{ $root.Chart.Name }}
    spec:
      serviceAccountName: {{ include "common.name" $root }}
      {{- include "common.podSpec" $root | nindent 6 }}
      terminationGracePeriodSeconds: {{ $values.terminationGraceSeconds }}
      topologySpreadConstraints:
        {{- if hasKey $overrides "topologySpreadConstraints" }}
        {{- toYaml ($overrides.topologySpreadConstraints | default list) | nindent 8 }}
        {{- else }}
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "common.selector" $root | nindent 14 }}
        {{- end }}
      containers:
        - name: {{ $root.Chart.Name }}
          image: {{ include "common.image" $root }}
          imagePullPolicy: {{ $values.global.image.pullPolicy }}
          args:
            {{- toYaml .args | nindent 12 }}
          envFrom:
            {{- with $overrides.envFrom }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            - configMapRef:
                name: {{ $values.global.endpoints.configMap }}
          env:
            {{- include "common.variables" (dict "root" $root "own" (include "common.ownVariables" .)) | nindent 12 }}
          ports:
            - name: http
              containerPort: 8080
          {{- include "common.probes" $root | nindent 10 }}
          lifecycle:
            preStop:
              # Endpoints are withdrawn while this sleeps; SIGTERM, which drains, comes after it.
              sleep:
                seconds: 5
          resources:
            {{- include "common.resources" $root | nindent 12 }}
          securityContext:
            {{- include "common.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            {{- include "common.mounts" $root | nindent 12 }}
            {{- include "common.authMount" . | trim | nindent 12 }}
            {{- if .s3 }}
            {{- include "common.s3Mounts" $root | trim | nindent 12 }}
            {{- end }}
            {{- with $overrides.volumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "common.volumes" $root | nindent 8 }}
        {{- include "common.authVolume" . | trim | nindent 8 }}
        {{- if .s3 }}
        {{- include "common.s3Volumes" $root | trim | nindent 8 }}
        {{- end }}
        {{- with $overrides.volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}

{{- define "common.ownVariables" -}}
- name: ROLECAST_WORKDIR
  value: /work
# Of the pod's grace, 5 s go to the preStop hook and 10 to what comes after draining.
- name: ROLECAST_DRAIN_SECONDS
  value: {{ sub (int .root.Values.terminationGraceSeconds) 15 | quote }}
{{- if .s3 }}
{{ include "common.s3Credentials" .root | trim }}
{{- end }}
{{ include "common.authEnv" . | trim }}
{{- if .externals }}
{{ include "common.externalKeys" .root | trim }}
{{- end }}
{{- with .env }}
{{ . | trim }}
{{- end }}
{{- end }}
