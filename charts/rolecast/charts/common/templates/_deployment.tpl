{{/* A part's Deployment. Takes `root`, `args` (of the image's entrypoint), `s3` (needs credentials), `auth` (keys of the Secret of tokens), `externals` (speaks through endpoints) and `env` (as YAML). */}}
{{- define "common.deployment" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $gpu := hasKey ($values.resources.limits | default dict) "nvidia.com/gpu" -}}
{{- if and (eq (include "common.device" $root) "cuda") (not $gpu) -}}
{{- fail (printf "%s runs on CUDA but asks for no GPU: set %s.resources.limits.\"nvidia.com/gpu\", or %s.device to cpu" $root.Chart.Name $root.Chart.Name $root.Chart.Name) -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "common.name" $root }}
  labels:
    {{- include "common.labels" $root | nindent 4 }}
spec:
  {{- if not ($values.autoscaling | default dict).enabled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy:
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
  selector:
    matchLabels:
      {{- include "common.selector" $root | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "common.podLabels" $root | nindent 8 }}
      annotations:
        checksum/endpoints: {{ include "common.endpoints" $root | sha256sum }}
        kubectl.kubernetes.io/default-container: {{ $root.Chart.Name }}
    spec:
      serviceAccountName: {{ include "common.name" $root }}
      {{- include "common.podSpec" $root | nindent 6 }}
      terminationGracePeriodSeconds: {{ $values.terminationGraceSeconds }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "common.selector" $root | nindent 14 }}
      containers:
        - name: {{ $root.Chart.Name }}
          image: {{ include "common.image" $root }}
          imagePullPolicy: {{ $values.global.image.pullPolicy }}
          args:
            {{- toYaml .args | nindent 12 }}
          envFrom:
            - configMapRef:
                name: {{ $values.global.endpoints.configMap }}
          env:
            - name: ROLECAST_WORKDIR
              value: /work
            {{- if .s3 }}
            {{- include "common.s3Credentials" $root | trim | nindent 12 }}
            {{- end }}
            {{- include "common.authEnv" . | trim | nindent 12 }}
            {{- if .externals }}
            {{- include "common.externalKeys" $root | trim | nindent 12 }}
            {{- end }}
            {{- with .env }}
            {{- . | trim | nindent 12 }}
            {{- end }}
            {{- range $name, $value := $values.env }}
            - name: {{ $name }}
              value: {{ $value | quote }}
            {{- end }}
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
            {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            {{- include "common.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            {{- include "common.mounts" $root | nindent 12 }}
            {{- include "common.authMount" . | trim | nindent 12 }}
      volumes:
        {{- include "common.volumes" $root | nindent 8 }}
        {{- include "common.authVolume" . | trim | nindent 8 }}
{{- end }}
