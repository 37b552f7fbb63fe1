{{/* What the restricted Pod Security level asks of a pod, and a numeric user that the images also know by name. */}}
{{- define "common.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "common.containerSecurity" -}}
{{- include "common.secured" (dict "own" (include "common.ownContainerSecurity" .) "given" (include "common.overrides" . | fromJson).securityContext) }}
{{- end }}

{{- define "common.ownContainerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Fields of every pod's spec besides its containers and volumes. */}}
{{- define "common.podSpec" -}}
automountServiceAccountToken: false
# A Service named "rolecast" would set ROLECAST_PORT, which is the name of our own setting.
enableServiceLinks: false
{{- $overrides := include "common.overrides" . | fromJson }}
securityContext:
  {{- include "common.secured" (dict "own" (include "common.podSecurity" .) "given" $overrides.podSecurityContext) | nindent 2 }}
{{- with .Values.global.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with merge (deepCopy (.Values.nodeSelector | default dict)) ($overrides.nodeSelector | default dict) }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat (.Values.tolerations | default list) ($overrides.tolerations | default list) }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName | default $overrides.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $overrides.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $overrides.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A process that starts slowly gets time by its own probe, so that liveness can be strict afterwards. */}}
{{- define "common.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ divf .Values.startupSeconds 5 | ceil | int }}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- define "common.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.scratch.tmp }}
- name: work
  emptyDir:
    sizeLimit: {{ .Values.scratch.work }}
{{- with .Values.scratch.shm }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . }}
{{- end }}
{{- end }}

{{- define "common.mounts" -}}
- name: tmp
  mountPath: /tmp
- name: work
  mountPath: /work
{{- if .Values.scratch.shm }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- end }}

{{/* Keys of the endpoints that roles speak through, each as the variable of its name. */}}
{{- define "common.externalKeys" -}}
{{- range .Values.global.externals.keys }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $.Values.global.externals.existingSecret }}
      key: {{ . }}
{{- end }}
{{- end }}

{{/* Tokens are mounted, not put into the environment: files follow the Secret, so tokens change without a restart. */}}
{{- define "common.authEnv" -}}
{{- if and .root.Values.global.auth.existingSecret .auth }}
{{- $variables := dict "tokens" "ROLECAST_TOKENS_FILE" "token" "ROLECAST_TOKEN_FILE" }}
{{- range .auth }}
- name: {{ get $variables . }}
  value: /etc/rolecast/auth/{{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "common.authMount" -}}
{{- if and .root.Values.global.auth.existingSecret .auth }}
- name: auth
  mountPath: /etc/rolecast/auth
  readOnly: true
{{- end }}
{{- end }}

{{- define "common.authVolume" -}}
{{- if and .root.Values.global.auth.existingSecret .auth }}
- name: auth
  secret:
    secretName: {{ .root.Values.global.auth.existingSecret }}
    defaultMode: 0440
    items:
      {{- range .auth }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- end }}
